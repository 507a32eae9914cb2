#!/bin/sh
# The boot after the power cut: recovery came before the services, what they find is told to the
# host, and Holdfast leaves.
. /usr/local/lib/steps

step "recovery came first"
systemctl is-system-running --wait >/dev/null || true
recovered=$(property holdfast-recover.service ExecMainExitTimestampMonotonic)
for service in redis-server ledger lone; do
    [ "$(property $service.service ExecMainStartTimestampMonotonic)" -gt "$recovered" ]
done
[ "$(property holdfast-recover.service Result)" = success ]
tell "recovered $(journalctl -b -u holdfast-recover.service -o cat | tr '\n' ' ')"

step "what is there"
tell "found redis $(redis-cli get n)"
for service in ledger lone; do
    tell "found $service $(sqlite3 -readonly /srv/$service/rows.db \
        'PRAGMA integrity_check; SELECT count(*) FROM item' | tr '\n' ' ')"
done
tell "units failed: $(systemctl --failed --plain --no-legend | tr '\n' ' ')"

step "Holdfast leaves"
systemctl stop ticker.service ledger.service lone.service redis-server.service
holdfast remove --pool /dev/dax1.0
systemctl disable --now holdfast@redis.service
holdfast remove --pool /mnt/pmem/redis.pool
dpkg --purge holdfast
[ ! -e /mnt/pmem/redis.pool ]
[ ! -e /etc/holdfast ]
[ ! -e /usr/lib/holdfast ]
step over
tell over
trap - EXIT
