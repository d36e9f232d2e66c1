"""A client in Python, generated from the document: it publishes a message, claims and settles it.

queue-over-sql openapi > openapi.json
pip install openapi-python-client
openapi-python-client generate --path openapi.json --meta none --output-path queues_client
QUEUES_URL=http://127.0.0.1:8080/api/v1 QUEUES_TOKEN=qos_… python client.py jobs
"""

import os
import sys
import uuid

from queues_client import AuthenticatedClient
from queues_client.api.claim_and_settle import ack, claim
from queues_client.api.publish import publish
from queues_client.models import (
    Ack,
    Claimed,
    ClaimRequest,
    NewMessage,
    Problem,
    PublishedMessage,
    Settled,
)

queue = sys.argv[1]
client = AuthenticatedClient(os.environ["QUEUES_URL"], os.environ["QUEUES_TOKEN"])

order = NewMessage(payload={"order": 17}, kind="order")
published = publish.sync(queue, client=client, body=order, idempotency_key=str(uuid.uuid4()))
assert isinstance(published, PublishedMessage), published
print(f"published {published.id}: {published.outcome}")

claimed = claim.sync(queue, client=client, body=ClaimRequest(count=10, lease=30, wait=5))
assert isinstance(claimed, Claimed), claimed
for message in claimed.messages:
    print(f"claimed {message.id}, attempt {message.attempt}: {message.payload}")

done = Ack(claims=[message.claim for message in claimed.messages])
settled = ack.sync(queue, client=client, body=done)
assert isinstance(settled, Settled), settled
print(f"settled {settled.settled}")

# A second ack finds the claims lost: the problem says which.
again = ack.sync(queue, client=client, body=done)
assert isinstance(again, Problem), again
print(f"lost {len(again.lost or ())}")
