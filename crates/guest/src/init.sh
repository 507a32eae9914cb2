#!/bin/busybox sh
# The guest's first process. The host says what to do by variables on the kernel's command line, and
# hears of it on the second serial line: setup, judge (a directory of an earlier boot), load (a
# directory).
. /first
mkdir -p /dev/shm
mount -t tmpfs none /dev/shm
mount -t tmpfs none /run
mount -t tmpfs none /tmp

pool_of() {
    case $1 in
    device) echo /dev/dax0.0 ;;
    ext4) echo /media/ext4/pool ;;
    xfs) echo /media/xfs/pool ;;
    esac
}

if [ -n "$setup" ]; then
    ndctl create-namespace -f -e namespace0.0 -m devdax --align=2M >/dev/null
    ndctl create-namespace -f -e namespace1.0 -m fsdax >/dev/null
    ndctl create-namespace -f -e namespace2.0 -m fsdax >/dev/null
    mkfs.ext4 -q -F -b 4096 /dev/pmem1
    mkfs.xfs -q -f -m reflink=0 /dev/pmem2
    mkfs.ext4 -q -F -b 4096 /dev/vda
fi
mkdir -p /media/ext4 /media/xfs /data
mount -o dax=always /dev/pmem1 /media/ext4 || tell "failed: mount ext4 with dax"
mount -o dax=always /dev/pmem2 /media/xfs || tell "failed: mount xfs with dax"
# Nothing is committed because time passes.
mount -o commit=300 /dev/vda /data || tell "failed: mount the disk"
if [ -n "$setup" ]; then
    for media in device ext4 xfs; do
        holdfast format --pool "$(pool_of $media)" --size 16M || tell "failed: format $media"
    done
fi

if [ -n "$judge" ]; then
    if [ "$judge_media" != none ]; then
        holdfast recover --pool "$(pool_of "$judge_media")" >/tmp/recovered 2>&1
        tell "recovered $? $(tr '\n' ' ' </tmp/recovered)"
    fi
    holdfast-guest judge "/data/$judge" "$judge_seed" 2 2 "$judge_noted" >$line
    tell "database $(sqlite3 "/data/$judge/app.db" "PRAGMA integrity_check;
        SELECT count(*) FROM item WHERE id <= $judge_rows AND payload = printf('%0600d', id)" 2>&1 | tr '\n' ' ')"
    tell "$(holdfast-guest judge-scattered "/data/$judge/scattered" "$judge_scattered")"
    rm -rf "/data/$judge"
fi

if [ -n "$load" ]; then
    mkdir "/data/$load"
    pool=$(pool_of "$load_media")
    run="holdfast run --durability write --age-max 300 --spill /data/spill-$load_media --spill-size 96M --pool $pool --"
    synchronous=FULL
    if [ "$load_media" = none ]; then
        run=""
        synchronous=OFF
    fi
    sqlite3 "/data/$load/app.db" "PRAGMA journal_mode=$journal; CREATE TABLE item(id INTEGER PRIMARY KEY, payload TEXT)"
    dd if=/dev/zero of="/data/$load/scattered" bs=1M count=16 2>/dev/null
    sync
    tell "load"
    $run holdfast-guest writers "/data/$load" $line "$load_seed" 2 2 1000000 0 &
    {
        echo "PRAGMA synchronous=$synchronous;"
        seq 1 1000000 | sed "s/.*/INSERT INTO item VALUES(&, printf('%0600d', &)); SELECT 'row &';/"
    } | $run sqlite3 -batch "/data/$load/app.db" >$line &
    $run holdfast-guest scatter "/data/$load/scattered" >$line &
    while [ "$load_media" != none ]; do
        sleep 1
        status=$(holdfast status --json --pool "$pool")
        echo "$status" | grep absorbed
        tell "frames $(echo "$status" | sed -n 's/.*"frames_used": \([0-9]*\).*/\1/p')"
    done
    wait
    tell "failed: the load ended"
fi
tell "over"
while :; do sleep 100; done
