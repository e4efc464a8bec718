#!/bin/sh
# Makes the server's ACL file from /acl, with a password for each account that is made up once and lies in the
# account's own volume, so that each container can read no password but its own.
set -eu
umask 022
{
    echo "user default off"
    echo "user headrace-health on nopass resetkeys resetchannels -@all +ping"
    for file in /acl/*.acl; do
        role=$(basename "$file" .acl)
        password=/accounts/$role/password
        [ -s "$password" ] || od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >"$password"
        sed "s/CHANGE-ME/$(cat "$password")/" "$file"
    done
} >/accounts/server/users.acl.new
mv /accounts/server/users.acl.new /accounts/server/users.acl
