#!/bin/bash
# run.sh [ARGS...]: tests docker-compose.yml with a Docker engine (services/e2e/compose, whose
# --help lists the steps and flags). Where no engine is running it starts one of its own
# (engine.sh) with images made from Debian's packages (bases.sh), and ends it afterwards.
# `make e2e-compose` builds the programs that this needs.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
cd "$here/../../.."
begin=$SECONDS
say() { printf '%6d s  %s\n' $((SECONDS - begin)) "$*"; }

go build -o bin/compose/ ./services/e2e/compose
case " $* " in *" --help "* | *" -help "* | *" -h "*) exec bin/compose/compose --help ;; esac
owned=
if ! docker info >/dev/null 2>&1; then
	owned=yes
	case " $* " in *" -keep "* | *" --keep "*) ;; *) trap '"$here/engine.sh" down' EXIT ;; esac
	"$here/engine.sh" up
	say "the engine runs"
	"$here/bases.sh"
	say "the images to start from are there"
fi
${owned:+"$here/engine.sh" exec} bin/compose/compose "$@"
say "the end"
