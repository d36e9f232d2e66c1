#!/bin/sh
# A worker in shell with curl: it drains a queue over HTTP, a message at a time.
#
#   QUEUES_URL=http://127.0.0.1:8000/api/v1 QUEUES_TOKEN=qos_… sh worker.sh jobs
#
# It may be killed at any moment: what it held comes back when its lease ends.

queue=$1
lease=${2:-30}

ask() { # verb, body
    # The token goes by a file: who lists the processes must not see it.
    printf 'header = "Authorization: Bearer %s"\n' "$QUEUES_TOKEN" |
        curl --silent --max-time 60 --config - --header 'Content-Type: application/json' \
            --data "$2" --write-out '\n%{http_code}' "$QUEUES_URL/queues/$queue/$1"
}

settle() { # verb, body; until there is an answer
    while :; do
        status=$(ask "$1" "$2" | tail -n 1)
        case $status in
        200 | 409) return ;;
        000 | 429 | 503) sleep 0.2 ;;
        *) echo "worker.sh: $1 was answered with $status" >&2 && return ;;
        esac
    done
}

handle() { # your work; the message is JSON, and a failure means to retry it later
    test -n "$1"
}

while :; do
    answer=$(ask claim "{\"lease\": $lease, \"wait\": 20}")
    # The last field of a message is its claim, whatever its payload says.
    claim=$(printf '%s' "$answer" | sed -n 's/.*"claim":"\([A-Za-z0-9_-]*\)"}\]}$/\1/p')
    if [ -z "$claim" ]; then
        case $answer in *200) ;; *) sleep 0.2 ;; esac
        continue
    fi
    if handle "$answer"; then
        settle ack "{\"claims\": [\"$claim\"]}"
        test "$status" = 200 && printf '%s\n' "$answer" | head -n 1
    else
        settle nack "{\"claims\": [\"$claim\"], \"error\": \"the handler failed\"}"
    fi
done
