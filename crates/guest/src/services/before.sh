#!/bin/sh
# The first boot, up to the power cut: Holdfast is installed on a machine with Redis, two services
# join one keeper and a third has its own, one stops, and the package is upgraded under them.
. /usr/local/lib/steps
# Waits until a command succeeds.
await() {
    begun=$(date +%s)
    until "$@"; do
        if [ $(($(date +%s) - begun)) -gt 240 ]; then
            echo "waited in vain for: $*"
            return 1
        fi
        sleep 0.2
    done
}
commands() { redis-cli get n; }
more_commands() { [ "$(commands)" -gt "$1" ]; }
# What the services themselves say: who opened a database to count would be an outsider.
rows() {
    told=$(tail -n 1 "/run/$1.told" | cut -d ' ' -f 2)
    echo "${told:-0}"
}
more_rows() { [ "$(rows "$1")" -gt "$2" ]; }
attached() { holdfast status --json --pool "$1" | tr -d ' \n' | sed 's/.*"clients":\[\([^]]*\)\].*/\1/' | tr ',' '\n' | grep -c .; }

systemctl is-system-running --wait >/dev/null || true
step "the package is installed"
dpkg -i /holdfast.deb
systemctl is-enabled holdfast-recover.service
holdfast --version

step "pools, a file on DAX and a device"
useradd --system lone
# A device has no owner but what udev gives it; systemd is to know when it is there.
cat >/etc/udev/rules.d/90-holdfast.rules <<'END'
SUBSYSTEM=="dax", KERNEL=="dax1.0", OWNER="lone", TAG+="systemd"
END
install -d /etc/systemd/system/holdfast-recover.service.d
printf '[Unit]\nWants=dev-dax1.0.device\nAfter=dev-dax1.0.device\n' \
    >/etc/systemd/system/holdfast-recover.service.d/device.conf
udevadm control --reload
udevadm trigger --settle --action=add --subsystem-match=dax
holdfast install --pool /mnt/pmem/redis.pool --user redis --size 64M --mount /mnt/pmem --mount /srv
runuser -u lone -- holdfast format --pool /dev/dax1.0
holdfast install --pool /dev/dax1.0 --user lone --mount /srv
# Nothing is brought to the disk because time passes.
for pool in redis dax1; do echo 'age-max = "300s"' >>/etc/holdfast/pools.d/$pool.toml; done
holdfast config check

step "three services"
examples=/usr/share/doc/holdfast/examples
install -d -o redis -g redis /srv/redis /srv/ledger
install -d -o lone /srv/lone
cat >>/etc/redis/redis.conf <<'END'
dir /srv/redis
appendonly yes
appendfsync always
save ""
END
install -d /etc/systemd/system/redis-server.service.d
cp $examples/redis-server.service.d/holdfast.conf /etc/systemd/system/redis-server.service.d/
printf '[Service]\nReadWritePaths=/srv/redis\n' >/etc/systemd/system/redis-server.service.d/place.conf
# Rows without end, each told once it is committed.
writer() {
    sqlite3 /srv/$1/rows.db 'PRAGMA journal_mode=WAL; CREATE TABLE item(id INTEGER PRIMARY KEY, payload TEXT)'
    chown "$2" /srv/$1/*
    # It rests now and then: the guest has one slow processor.
    yes "INSERT INTO item(payload) VALUES(printf('%0600d', 1)); SELECT '$1 ' || max(id) FROM item;" |
        head -n 40000 | sed '0~20a .shell sleep 1' >/usr/local/lib/$1.sql
    cat >/etc/systemd/system/$1.service <<END
[Unit]
After=local-fs.target
RequiresMountsFor=/srv
[Service]
Type=exec
User=$2
ExecStart=$3/usr/bin/sqlite3 -batch /srv/$1/rows.db
SuccessExitStatus=143
Nice=19
StandardInput=file:/usr/local/lib/$1.sql
StandardOutput=append:/run/$1.told
StandardError=journal
[Install]
WantedBy=multi-user.target
END
    : >/run/$1.told
    tail -n +1 -f /run/$1.told | sed -u '' >/dev/ttyS1 &
}
writer ledger redis ""
install -d /etc/systemd/system/ledger.service.d
sed -e 's/USER/redis/' -e 's|PROGRAM|/usr/bin/sqlite3 -batch /srv/ledger/rows.db|' \
    $examples/any.service.d/holdfast.conf >/etc/systemd/system/ledger.service.d/holdfast.conf
# A service with a keeper of its own, which gets SIGTERM with the program.
writer lone lone "/usr/bin/holdfast run --durability write -- "
cat >/etc/systemd/system/ticker.service <<'END'
[Unit]
After=redis-server.service
Requires=redis-server.service
[Service]
ExecStart=/bin/sh -c 'while :; do echo "INCR n"; sleep 0.05; done | redis-cli | sed -u "s/^/redis /" >/dev/ttyS1'
[Install]
WantedBy=multi-user.target
END
sync
systemctl daemon-reload
systemctl enable --now holdfast@redis.service
systemctl restart redis-server.service
redis-cli set n 0
systemctl enable --now ledger.service lone.service ticker.service
await more_commands 10
await more_rows ledger 10
await more_rows lone 10
[ "$(attached /mnt/pmem/redis.pool)" -ge 2 ]

step "one of two services stops"
systemctl stop ledger.service
[ "$(property ledger.service Result)" = success ]
journalctl -b -u ledger.service -o cat | grep 'syncs absorbed'
[ "$(property holdfast@redis.service ActiveState)" = active ]
await more_commands $(($(commands) + 10))
systemctl start ledger.service
await more_rows ledger $(($(rows ledger) + 10))

step "everybody in a cgroup gets SIGTERM"
systemctl stop lone.service
journalctl -b -u lone.service -o cat | grep 'syncs absorbed'
holdfast recover --dry-run --pool /dev/dax1.0
holdfast recover --dry-run --json --pool /dev/dax1.0 | tr -d ' \n' | grep '"records":0'
systemctl start lone.service
await more_rows lone $(($(rows lone) + 10))

step "the package is upgraded"
keeper=$(property holdfast@redis.service MainPID)
redis=$(property redis-server.service MainPID)
dpkg -i /newer.deb
await more_commands $(($(commands) + 10))
[ "$(property holdfast@redis.service MainPID)" = "$keeper" ]
[ "$(property redis-server.service MainPID)" = "$redis" ]
# What is started from now on is the new one, and joins the old keeper.
systemctl restart ledger.service
await more_rows ledger $(($(rows ledger) + 10))

sync -f /etc
step "ready"
tell ready
# The services are heard until the power goes.
wait
