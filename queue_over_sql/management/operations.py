"""All operations of operators, with the command, the HTTP operation and the button of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from queue_over_sql.management.operation import (
    Button,
    Command,
    EditOption,
    Http,
    OperatorVerb,
    Options,
    Role,
    Without,
)

OPERATOR, ADMIN = Role.OPERATOR, Role.ADMIN
_DECLARED: Final = Without("Programs and scripts declare topics, subscriptions and schedules.")
_SPARK: Final = Without("Durable consumers are those of Spark, whose jobs use the library.")
_REAPER: Final = Without("The server runs a reaper in the background.")

# fmt: off
_ALL: Final = (
    # -- queues
    OperatorVerb(
        "pause", OPERATOR, "Queue.pause",
        (Command(
            "pause",
            "Stop delivering the messages of a queue to all consumers. Publishing is still "
            "possible.",
            "Queue {name} is paused.", {"paused": True},
        ),),
        Http(
            "pause_queue", "POST", "/queues/{queue}/pause",
            "Stop delivering messages to all consumers; claimed messages can still be settled.",
        ),
        (Button("pause", "Pause", "Paused {queue}.", undo="resume"),),
    ),
    OperatorVerb(
        "resume", OPERATOR, "Queue.resume",
        (Command(
            "resume", "Deliver the messages of a paused queue again.",
            "Queue {name} is resumed.", {"paused": False},
        ),),
        Http("resume_queue", "POST", "/queues/{queue}/resume", "Deliver messages again."),
        (Button("resume", "Resume", "Resumed {queue}.", undo="pause"),),
    ),
    OperatorVerb(
        "settings", ADMIN, "QueueService.create_queue", (Options("create"),),
        Http(
            "create_queue", "PUT", "/queues/{queue}",
            "Create a queue, or change the given settings of an existing one.", 200, (409,),
        ),
        (Button("settings", "Change", "Changed {queue}: {settings}.", undo="settings"),),
    ),
    OperatorVerb(
        "purge", ADMIN, "Queue.purge", (Options("purge"),),
        Http(
            "purge_queue", "POST", "/queues/{queue}/purge",
            "Permanently remove all live messages; the archive stays.", 200, (404, 409),
        ),
        (Button(
            "purge", "Purge", "Removed {n} of {queue}.",
            "Permanently remove {n} from {queue}? Claimed messages stay.", "unclaimed", danger=True,
        ),),
    ),
    OperatorVerb(
        "drop", ADMIN, "QueueService.drop_queue",
        (Command(
            "drop", "Permanently drop a queue with its messages, its archive and its settings.",
            "Queue {name} is dropped.", {"dropped": True},
            question="Permanently drop queue {name} with its messages and its archive?",
        ),),
        Http(
            "drop_queue", "DELETE", "/queues/{queue}",
            "Drop a queue with all its messages and its archive; this cannot be undone.",
            204, (404, 409),
        ),
        (Button(
            "drop", "Drop", "Dropped {queue}.",
            "Drop {queue} with all its messages and its archive?", word="queue", danger=True,
        ),),
    ),
    # -- groups
    OperatorVerb(
        "pause-group", OPERATOR, "Group.pause", (Options("group pause"),),
        Http(
            "pause_group", "POST", "/queues/{queue}/groups/pause",
            "Stop delivering the messages of one group; claimed ones can still be settled.",
        ),
        (Button("pause-group", "Pause", "Paused group {group}.", undo="resume-group"),),
    ),
    OperatorVerb(
        "resume-group", OPERATOR, "Group.resume", (Options("group resume"),),
        Http(
            "resume_group", "POST", "/queues/{queue}/groups/resume",
            "Deliver the messages of a paused group again.",
        ),
        (Button("resume-group", "Resume", "Resumed group {group}.", undo="pause-group"),),
    ),
    OperatorVerb(
        "unblock-group", OPERATOR, "Group.unblock", (Options("group unblock"),),
        Http(
            "unblock_group", "POST", "/queues/{queue}/groups/unblock",
            "Deliver the messages behind the dead letter that blocks a group. The dead letter "
            "stays in the archive.",
        ),
        (Button(
            "unblock-group", "Unblock", "Unblocked group {group}.",
            "Deliver the messages behind the dead letter of group {group}? The dead letter stays "
            "in the archive.",
        ),),
    ),
    OperatorVerb(
        "configure-group", OPERATOR, "Group.configure", (Options("group configure"),),
        Http(
            "configure_group", "POST", "/queues/{queue}/groups/configure",
            "Give a group a limit, a rate or a weight of its own, or with null take it back.",
        ),
        (Button(
            "configure-group", "Change", "Group {group} has {rules}.", undo="configure-group",
        ),),
    ),
    # -- live messages
    OperatorVerb(
        "hold", OPERATOR, "LiveSelection.hold",
        (EditOption(
            "hold", "Do not deliver them until --unhold, --delay or --at.", "Hold", "Held",
            given={},
        ),),
        Http(
            "hold", "POST", "/queues/{queue}/messages/hold",
            "Hold messages: they are not delivered until `unhold`. Claimed ones stay unchanged.",
            200, (404, 409),
        ),
        (Button(
            "hold", "Hold", "Held {n}.",
            "Hold {n}? A held message is not delivered until you release it from hold.",
            # Undoing this for a message that waits for a retry would make it due at once.
            "live", asks_for_all=True, undo="unhold", undo_for="ready",
        ),),
    ),
    OperatorVerb(
        "unhold", OPERATOR, "LiveSelection.unhold",
        (EditOption(
            "unhold", "Deliver held messages again, at their original due time.",
            "Unhold", "Unheld", given={}, status="held",
        ),),
        Http(
            "unhold", "POST", "/queues/{queue}/messages/unhold",
            "End the hold of messages; they are due at their original time.", 200, (404, 409),
        ),
        (Button(
            "unhold", "Release from hold", "Released from hold {n}.", "Release {n} from hold?",
            "live", asks_for_all=True, undo="hold", undo_for="held",
        ),),
    ),
    OperatorVerb(
        "reschedule", OPERATOR, "LiveSelection.reschedule",
        (
            EditOption(
                "delay", "Make them due after this delay.", "Reschedule", "Rescheduled",
                " to {value} from now",
            ),
            EditOption(
                "at", "Make them due at this time: ISO 8601 with an offset.",
                "Reschedule", "Rescheduled", " to {value} UTC",
            ),
        ),
        Http(
            "reschedule", "POST", "/queues/{queue}/messages/reschedule",
            "Make messages due at a time or after a delay.", 200, (404, 409),
        ),
        (
            Button(
                "due", "Make due now", "Made due {n}.", "Make {n} due now?", "live",
                given={"delay": 0},
            ),
            Button("delay", "Delay", "{n} will be due in {delay}.", undo="due"),
        ),
    ),
    OperatorVerb(
        "prioritize", OPERATOR, "LiveSelection.prioritize",
        (
            EditOption(
                "front", "Make them due now, ahead of all others of their priority.",
                "Move", "Moved", " to the front", {"front": True},
            ),
            EditOption(
                "priority", "Move them to this priority; 0 is the most urgent.",
                "Move", "Moved", " to priority {value}",
            ),
        ),
        Http(
            "prioritize", "POST", "/queues/{queue}/messages/prioritize",
            "Move messages to another priority, or to the front of their own.", 200, (404, 409),
        ),
        (Button(
            "front", "Move to the front", "Moved to the front {n}.",
            "Move {n} before all others of their priority?", "live", given={"front": True},
        ),),
    ),
    OperatorVerb(
        "max-attempts", OPERATOR, "LiveSelection.set_max_attempts",
        (EditOption(
            "max_attempts", "Allow so many attempts in all, those before included.",
            "Change", "Changed", " to {value} attempts",
        ),),
        Http(
            "set_max_attempts", "POST", "/queues/{queue}/messages/max-attempts",
            "Allow messages another number of attempts; claimed ones stay unchanged.",
            200, (404, 409),
        ),
        (Button(
            "max-attempts", "Change", "{n} may be tried {max_attempts} times in all.",
            undo="max-attempts",
        ),),
    ),
    OperatorVerb(
        "remove", OPERATOR, "LiveSelection.remove",
        (EditOption(
            "remove", "Permanently remove them, 500 per transaction. Their keys become free.",
            "Remove", "Removed", given={},
        ),),
        Http(
            "delete_messages", "POST", "/queues/{queue}/messages/delete",
            "Permanently remove messages; claimed ones stay.", 200, (404, 409),
        ),
        (Button(
            "remove", "Remove", "Removed {n}.", "Permanently remove {n}?", "live", danger=True,
        ),),
    ),
    OperatorVerb(
        "cancel", OPERATOR, "Queue.cancel", (Options("cancel"),),
        Http(
            "cancel", "POST", "/queues/{queue}/messages/cancel",
            "Make dead letters of messages, even if a consumer holds them.", 200,
        ),
        (Button(
            "cancel", "Cancel", "Cancelled {n}.",
            "Cancel {n}? A cancelled message becomes a dead letter, even if a consumer works on "
            "it.",
            "live", danger=True,
        ),),
    ),
    # -- finished messages
    OperatorVerb(
        "requeue", OPERATOR, "ArchiveSelection.requeue", (Options("requeue"),),
        Http(
            "requeue", "POST", "/queues/{queue}/archive/requeue",
            "Requeue finished messages: each gets a new id and its attempt count is reset.\n\n"
            "By ids, one transaction moves all of them, or none. By a filter, each moves up to "
            "10,000. With one id, `payload` may be another payload.",
            200, (404, 409, 413),
        ),
        (
            Button(
                "redrive", "Requeue", "Requeued {n}.",
                "Requeue {n}? A requeued message gets a new id, and its attempts start again.",
                "archived",
            ),
            Button(
                "edit", "Requeue with this payload", "Requeued {n} with another payload.",
                "Requeue {n} with another payload?", "archived",
            ),
        ),
    ),
    OperatorVerb(
        "remove-archived", OPERATOR, "ArchiveSelection.remove", (Options("archive remove"),),
        Http(
            "delete_archive", "POST", "/queues/{queue}/archive/delete",
            "Permanently remove finished messages.", 200, (404, 409),
        ),
        (Button(
            "remove-archived", "Remove", "Removed {n} from the archive.",
            "Permanently remove {n} from the archive?", "archived", danger=True,
        ),),
    ),
    # -- consumers
    OperatorVerb(
        "release-consumer", OPERATOR, "QueueService.release_consumer",
        (Command(
            "consumer release",
            "Release the messages that a process or a streaming query of Spark holds.\n\n"
            "Use this for a process that is gone, or a query that will not restart: other "
            "consumers get the messages at once. "
            "If the query still runs, the command stops it. If the query wrote the result of a "
            "message but did not acknowledge the message, the message is delivered again.",
            "Released {n} of {name}.", count="released",
            question="Release all messages that {name} holds, and stop it if it still runs?",
        ),),
        _SPARK,
        (Button(
            "release-consumer", "Release", "Released {n} of {consumer}.",
            "Release all messages that this consumer holds? It can then no longer settle them.",
            danger=True,
        ),),
        of="consumer",
    ),
    OperatorVerb(
        "drop-consumer", ADMIN, "QueueService.drop_consumer",
        (Command(
            "consumer drop",
            "Delete a durable consumer and release the messages that it holds.\n\n"
            "If you start its query again with the old checkpoint, the query fails.",
            "Deleted {name} and released {n}.", count="released",
            question="Delete {name} and release all messages that it holds?",
        ),),
        _SPARK,
        Without("It takes from a checkpoint what it needs; to release its messages is enough."),
        of="consumer",
    ),
    OperatorVerb(
        "reap", OPERATOR, "QueueService.reap", (Options("reaper"),), _REAPER, _REAPER,
    ),
    # -- schedules
    OperatorVerb(
        "pause-schedule", OPERATOR, "Schedules.pause",
        (Command(
            "schedule pause",
            "Pause a schedule, and remove its messages for times to come.\n\n"
            "It keeps the messages for past times, even if they still wait because of the "
            "schedule's delay.",
            "Schedule {name} is paused.", {"paused": True},
        ),),
        Http(
            "pause_schedule", "POST", "/schedules/{name:path}/pause",
            "Publish nothing until it is resumed, and remove its messages for times to come.\n\n"
            "Messages for times that have passed stay, also those that wait because of its "
            "`delay`.",
        ),
        (Button(
            "pause-schedule", "Pause", "Paused the schedule {schedule}.", undo="resume-schedule",
        ),),
        of="schedule",
    ),
    OperatorVerb(
        "resume-schedule", OPERATOR, "Schedules.resume", (Options("schedule resume"),),
        Http(
            "resume_schedule", "POST", "/schedules/{name:path}/resume",
            "Continue with the next time; the times during the pause do not count as missed.",
            204, (404, 409, 413),
        ),
        (Button(
            "resume-schedule", "Resume", "Resumed the schedule {schedule}.", undo="pause-schedule",
        ),),
        of="schedule",
    ),
    OperatorVerb(
        "run-schedule", OPERATOR, "Schedules.run", (Options("schedule run"),),
        Http(
            "run_schedule", "POST", "/schedules/{name:path}/run",
            "Publish one message now, even if it is paused; its next instants stay as they are.",
            201, (404, 409, 413),
        ),
        (Button(
            "run-schedule", "Run now", "Ran the schedule {schedule}.",
            "Publish one message of {schedule} now? Its next times stay as they are.",
        ),),
        of="schedule",
    ),
    OperatorVerb(
        "remove-schedule", ADMIN, "Schedules.remove",
        (Command(
            "schedule remove",
            "Remove a schedule and its messages for times to come.\n\n"
            "It keeps the messages for past times, even if they still wait because of the "
            "schedule's delay.",
            "Schedule {name} is removed.", {"removed": True},
        ),),
        _DECLARED, _DECLARED, of="schedule",
    ),
    # -- topics
    OperatorVerb(
        "subscribe", ADMIN, "Topic.subscribe", (Options("subscribe"),),
        _DECLARED, _DECLARED, of="topic",
    ),
    OperatorVerb(
        "unsubscribe", ADMIN, "Topic.unsubscribe", (Options("unsubscribe"),),
        _DECLARED, _DECLARED, of="topic",
    ),
    OperatorVerb(
        "drop-topic", ADMIN, "QueueService.drop_topic", (Options("topic drop"),),
        _DECLARED, _DECLARED, of="topic",
    ),
    # -- tokens
    OperatorVerb(
        "add-token", ADMIN, "WebStore.add_token", (Options("token add"),),
        Http(
            "add_token", "POST", "/tokens", "Create a token; only this answer contains it.",
            201, (409,),
        ),
        (Button("add-token", "Add", "The token of {token}, {role}."),),
        of="token",
    ),
    OperatorVerb(
        "remove-token", ADMIN, "WebStore.remove_token", (Options("token remove"),),
        Http(
            "remove_token", "DELETE", "/tokens/{name}",
            "Remove a token and end all sessions that were made from it.\n\n"
            "The last one of an admin goes only with `last_admin=true`.", 204, (404, 409),
        ),
        (Button(
            "remove-token", "Remove", "Removed the token of {token}.",
            "Remove the token of {token}? It and the sessions that it opened end within a second.",
            danger=True,
        ),),
        of="token",
    ),
)
# fmt: on

OPERATIONS: Final[Mapping[str, OperatorVerb]] = {each.name: each for each in _ALL}
"""All operations, by their names in the audit."""
