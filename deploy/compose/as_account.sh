#!/bin/sh
# Runs headrace with the account HEADRACE_ACCOUNT, whose password lies in /account.
set -eu
HEADRACE_REDIS="redis://headrace-$HEADRACE_ACCOUNT:$(cat /account/password)@valkey:6379/0" exec headrace "$@"
