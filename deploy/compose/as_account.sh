#!/bin/sh
# Runs headrace with the account HEADRACE_ACCOUNT, whose password lies in /account once the server has made it up.
set -eu
until [ -s /account/password ]; do
    sleep 0.2
done
HEADRACE_REDIS="redis://headrace-$HEADRACE_ACCOUNT:$(cat /account/password)@valkey:6379/0" exec headrace "$@"
