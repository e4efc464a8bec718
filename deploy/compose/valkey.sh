#!/bin/sh
# Runs a server with an account for each file in /acl. Their passwords are made up at the first start; each lies in
# the account's own volume, so that a container can read no password but its own.
set -eu
umask 022
{
    echo "user default off"
    echo "user headrace-health on nopass resetkeys resetchannels -@all +ping"
    for file in /acl/*.acl; do
        password=/accounts/$(basename "$file" .acl)/password
        if ! [ -s "$password" ]; then
            od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >"$password.new"
            mv "$password.new" "$password"
        fi
        sed "s/CHANGE-ME/$(cat "$password")/" "$file"
    done
} >/tmp/users.acl
# The image's own entry point gives /data to the account that the server then runs as.
if command -v docker-entrypoint.sh >/dev/null; then
    set -- docker-entrypoint.sh "$@"
fi
exec "$@"
