#!/bin/sh
# Asks an agent, and prints the events of its run. If the connection breaks, it goes on after the
# last event that it has: nothing is missed, and nothing comes twice.
set -eu
api() {
	path=$1; shift
	curl -sS "$SIGNALBOX_URL$path" -H "Authorization: Bearer $SIGNALBOX_TOKEN" -H "X-Workspace-Id: $SIGNALBOX_WORKSPACE" "$@"
}
id() { grep -o '"id":"[^"]*"' | head -n 1 | cut -d '"' -f 4; }
question=$(printf %s "${1:?what to ask}" | sed 's/\\/\\\\/g; s/"/\\"/g')

session=$(api /api/sessions -X POST | id)
# The Idempotency-Key makes it safe to send the question again.
run=$(api "/api/sessions/$session/messages" --retry 3 -H "Idempotency-Key: $session-1" -H 'Prefer: respond-async' \
	-H 'Content-Type: application/json' -d "{\"content\":\"$question\"}" | id)

[ -n "$run" ] || { echo "the message was not accepted: see GET $SIGNALBOX_URL/api/sessions/$session" >&2; exit 1; }

last=
events=$(mktemp)
trap 'rm -f "$events"' EXIT
until [ "${kind:-}" = done ] || [ "${kind:-}" = error ]; do
	api "/api/runs/$run/events" -N -H "Last-Event-ID: $last" | tee "$events" | sed -n 's/^data: //p'
	case $(head -c 1 "$events") in
	'{') cat "$events" >&2; exit 1 ;; # an error
	'') sleep 1 ;;                    # no answer
	esac
	kind=$(sed -n 's/^event: //p' "$events" | tail -n 1)
	seen=$(sed -n 's/^id: //p' "$events" | tail -n 1)
	last=${seen:-$last}
done
