#!/bin/bash
# Runs all tests of Holdfast: formatting, lints, every crate's own tests, and the end-to-end tests
# on real programs. Installs the Debian packages they need, when missing. Run it as root: the
# end-to-end tests mount file systems.
#
#   bash test.sh            everything, as far as 25 minutes go
#   bash test.sh --quick    what finds most mistakes, in under four minutes
#   HOLDFAST_TEST_ALL=1 bash test.sh    everything, however long it takes
set -u
case "${1:-}" in
"" | --quick) quick=${1:-} ;;
*)
    echo "usage: bash test.sh [--quick]"
    exit 2
    ;;
esac
cd "$(dirname "$0")" || exit 1
export PATH="$PATH:/usr/sbin:/sbin:$HOME/.cargo/bin" LC_ALL=C.UTF-8 CARGO_TERM_COLOR=never RUST_BACKTRACE=0
# A clean checkout is built once: nothing need be kept for the next build.
[ -d target/debug ] || export CARGO_INCREMENTAL=0

packages="ca-certificates gcc libc6-dev git python3 sqlite3 redis-server redis-tools rocksdb-tools postgresql-15 fio eatmydata
    libpython3.11-testsuite stress-ng rsync sudo fuse3 strace musl-tools valgrind libc6-dbg lsof binutils lmdb-utils e2fsprogs xfsprogs
    btrfs-progs util-linux mount qemu-system-x86 ndctl busybox-static python3-plyvel vim dpkg
    mariadb-server-core mariadb-client-core systemd tmux prometheus python3-prometheus-client groff-base"
# Wherever Go comes from: tests look there, too.
[ -x /usr/local/go/bin/go ] || packages="$packages golang-go"
missing=""
for package in $packages; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
if [ -n "$missing" ]; then
    echo "== installing:$missing"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    { apt-get update -q && apt-get install -y -q --no-install-recommends $missing; } >/dev/null || {
        echo "cannot install:$missing"
        echo "run as root: apt-get install -y --no-install-recommends$missing"
        exit 1
    }
fi

log=$(mktemp)
tally=$(mktemp)
trap 'rm -f "$log" "$log.times" "$log.again" "$tally"' EXIT

# Some tests run what is built as other users, who cannot enter a checkout in root's home: then it
# lies elsewhere.
if [ ! -L target ] && ! setpriv --reuid=65534 --regid=65534 --clear-groups test -x "$PWD/."; then
    built=$(mktemp -d /var/tmp/holdfast-target-XXXXXX) && chmod 755 "$built" &&
        { [ ! -d target ] || mv target "$built"; } && mkdir -p "$built/target" && ln -s "$built/target" target || exit 1
    echo "other users cannot enter $PWD: target is a link to $built/target now"
fi

# The guest boots Debian's stock kernel. It is unpacked, not installed: this machine's own boot
# files are left alone.
kernel=target/guest-kernel
if [ ! -d "$kernel/lib/modules" ]; then
    package=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image/ { print $2; exit }')
    mkdir -p "$kernel" && (cd "$kernel" && apt-get download -q "$package" >/dev/null 2>&1 && dpkg -x ./*.deb . && rm -f ./*.deb) || {
        echo "cannot download a kernel for the guest: try apt-get update && apt-get download $package"
        exit 1
    }
fi
summary=()
failed=0
# What a step's command is started with.
apart=""

# Seconds of processor time that the commands so far have used, into `used`: a subshell would tell
# its own.
count_processors() {
    times >"$log.times"
    used=$(awk 'NR == 2 { split($1, user, /[ms]/); split($2, kernel, /[ms]/)
        printf "%d", (user[1] + kernel[1]) * 60 + user[2] + kernel[2] }' "$log.times")
}

# The beginning of what the failed tests of a log say.
why() {
    awk '/ panicked at / { lines = 8 }
        /^note: |^stack backtrace|^$/ { lines = 0 }
        lines-- > 0 && told++ < 40 { print "    " substr($0, 1, 240) }' "$1"
}

# The tests that failed in the log, by the headlines of what they said.
broken() {
    sed -n 's/^---- \(.*\) stdout ----$/\1/p' "$log" | sort -u
}

# look_again SECONDS COMMAND...: the tests that failed in the log, run twice more, each alone. The
# machine is shared and its clocks are real, so a test may fail that is right; one that fails for a
# reason fails again. Whatever needed this is named in the last lines, so that nobody forgets it.
look_again() {
    local limit=$1 names=() again=() round passed
    shift
    # A schedule that breaks a model does not come again by chance: it counts.
    case " $* " in *" -p holdfast-model "*) return 1 ;; esac
    mapfile -t names < <(broken)
    [ ${#names[@]} -ge 1 ] && [ ${#names[@]} -le 3 ] || return 1
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        again+=("$1")
        shift
    done
    for round in 1 2; do
        echo "== once more, $round of 2: ${names[*]}"
        $apart timeout --kill-after=20 "$limit" "${again[@]}" -- --exact --test-threads=1 "${names[@]}" 2>&1 | tee "$log.again"
        [ "${PIPESTATUS[0]}" -eq 0 ] || return 1
        passed=$(awk '/^test result:/ { passed += $4 } END { print passed + 0 }' "$log.again")
        [ "$passed" -ge ${#names[@]} ] || return 1
    done
}

# step NAME SECONDS COMMAND...: runs it, shows what it says, notes how it ended and what it took.
step() {
    local name=$1 limit=$2 started=$SECONDS used before status tests took once="" line
    shift 2
    count_processors
    before=$used
    echo "== $name"
    $apart timeout --kill-after=20 "$limit" "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    # What was counted: the test harness may have begun the line.
    grep -o 'tally: .*' "$log" >>"$tally"
    tests=$(awk '/^test result:/ { passed += $4; failed += $6 }
        END { if (passed + failed) printf ", %d tests passed, %d failed", passed, failed }' "$log")
    if [ "$status" -ne 0 ] && look_again "$limit" "$@"; then
        status=0
        once=1
    fi
    count_processors
    took="$((SECONDS - started)) s, $((used - before)) s of processors$tests"
    if [ "$status" -eq 0 ]; then
        summary+=("ok      $name ($took)")
        if [ -n "$once" ]; then
            while read -r line; do
                summary+=("            FAILED ONCE, passed twice when run again: $line")
            done < <(broken)
            while read -r line; do
                summary+=("            $line")
            done < <(why "$log")
        fi
        while read -r line; do
            summary+=("            $line")
        done < <(grep -E '^(summary|[0-9]+ histories|[0-9]+ of [0-9]+ canaries|[0-9]+ histories with|[0-9]+ cuts|exhaustive sets)' "$log")
    else
        failed=1
        summary+=("FAILED  $name (status $status, $took)")
        while read -r line; do
            summary+=("            $line")
        done < <(grep -E '^test .* FAILED$' "$log"; why "$log")
    fi
}

# in_time TAKES NAME SECONDS COMMAND...: a step that takes so many seconds, unless continuous
# integration, which has 25 minutes, has less left.
in_time() {
    local takes=$1
    shift
    if [ $((SECONDS + takes)) -lt 1450 ] || [ -n "${HOLDFAST_TEST_ALL:-}" ]; then
        step "$@"
    else
        summary+=("NOT RUN $1: $SECONDS s are over. HOLDFAST_TEST_ALL=1 bash test.sh runs everything; or: ${*:3}")
    fi
}

# lane NAME FUNCTION: the steps of a function, beside others; what they say is shown at the end.
lane() {
    local name=$1
    (
        summary=() failed=0 log=$beside/$name.step
        # A session of its own is a group of its own for the scheduler. Where what computes shares
        # the session of the tests, a kernel (6.18) was seen to let all other sessions wait up to
        # 14 s for a processor: every keeper has its own.
        apart="setsid --wait"
        "$2"
        printf '%s\n' "${summary[@]}" >"$beside/$name.summary"
        exit "$failed"
    ) >"$beside/$name.told" 2>&1 &
    lanes+=("$!:$name")
}

# Waits for all lanes, and shows what they had to say.
join() {
    local one name line
    for one in "${lanes[@]}"; do
        name=${one#*:}
        wait "${one%%:*}" || failed=1
        cat "$beside/$name.told"
        while IFS= read -r line; do [ -z "$line" ] || summary+=("$line"); done <"$beside/$name.summary"
    done
    lanes=()
}

# One build for all tools. It contains the deliberate bugs, which do nothing until one is named.
build_tools() {
    step "tools: build" 600 cargo build --profile canaries -p holdfast -p holdfast-preload -p holdfast-sim \
        -p holdfast-fuzz -p holdfast-guest --target-dir target/canaries \
        --features holdfast/canaries,holdfast-preload/canaries,holdfast-sim/canaries
    : >"$beside/tools-built"
}

# What users get, and the tools, which then compute.
products() {
    step "release build" 900 cargo build --release
    : >"$beside/released"
    if [ -z "$quick" ]; then
        build_tools
        computing
        # From here on all wait more than they compute.
        until [ -e "$beside/tests-built" ]; do sleep 1; done
        suites
    fi
}

computing() {
    step "fuzzing" 200 target/canaries/canaries/holdfast-fuzz --seconds 20
    step "model checking" 700 cargo test -p holdfast-model --no-fail-fast
    step "crash simulation" 400 target/canaries/canaries/holdfast-sim --exhaustive 3 --seeds 100
    step "power cuts of a guest with DAX media" 300 target/canaries/canaries/holdfast-guest --kernel "$kernel" --cuts 1
}

# These need processors and no disk.
bugs() {
    step "canaries: every deliberate bug is caught" 900 target/canaries/canaries/holdfast-sim --canaries
    step "known histories: every rule that is taken out is missed" 300 target/canaries/canaries/holdfast-sim --stories
}

# Suites that need the build with deliberate bugs, or the time of the others.
later="commits histories forgetful kills power_cuts cut_programs"
# The end-to-end suites that nobody has begun: the lanes share them.
suites() {
    local suite name
    for suite in crates/e2e/tests/*.rs; do
        name=$(basename "$suite" .rs)
        case " $later " in *" $name "*) continue ;; esac
        mkdir "$beside/begun-$name" 2>/dev/null || continue
        # Some take rules out, in the build with deliberate bugs.
        if grep -q 'canaries::' "$suite"; then
            until [ -e "$beside/tools-built" ]; do sleep 1; done
        fi
        step "end to end: $name" 400 "${test[@]}" --test "$name" -- --test-threads=2
    done
}

storm() {
    in_time "$1" "end to end: $2" 400 "${test[@]}" --test "$2" -- --test-threads=2
}

sieges() {
    step "siege: short sequences of operations, cut and compared" 400 "${test[@]}" --test siege -- --test-threads=1
    step "calibration: the simulator's disks, held to the kernels" 300 "${test[@]}" --test calibration -- --test-threads=2
}

# What waits more than it computes, in three lanes; what matters most comes first in each.
kills() {
    storm 150 kills
    in_time 10 "end to end, with write-behind: services, outsiders" 300 \
        env HOLDFAST_E2E_RUN_OPTIONS=--write-behind=on \
        "${test[@]}" --test services --test outsiders -- --test-threads=2
}

cuts() {
    storm 65 power_cuts
    storm 60 cut_programs
}

others() {
    step "end to end: histories" 400 "${test[@]}" --test histories -- --test-threads=2
    storm 40 forgetful
    in_time 40 "end to end, with durability = sync: crash_sqlite, crash_postgres, differential" 300 \
        env HOLDFAST_E2E_RUN_OPTIONS=--durability=sync \
        "${test[@]}" --test crash_sqlite --test crash_postgres --test differential -- --test-threads=2
}

beside=$(mktemp -d)
lanes=()
# One build for all tests: cargo unites the features of the packages that are selected, so another
# selection may build the half of it anew.
test=(cargo test --workspace --no-fail-fast)

step "formatting (cargo fmt)" 60 cargo fmt --all --check
# A build ends with few steps that wait for each other: two go side by side.
lane products products
step "lints (cargo clippy, warnings are errors)" 600 cargo clippy --workspace --all-targets -- -D warnings
step "documentation (cargo doc, warnings are errors)" 600 env RUSTDOCFLAGS="-D warnings" \
    cargo doc --workspace --no-deps --document-private-items
# Licences, duplicates and sources of all dependencies. Advisories need their database from the
# network: run `cargo deny check advisories` where it can be reached.
# They are built without optimisation: that takes a fifth of the time, and they run for a moment.
tools=""
for tool in deny machete; do
    cargo "$tool" --version >/dev/null 2>&1 || tools="$tools cargo-$tool"
done
if [ -n "$tools" ]; then
    # shellcheck disable=SC2086
    step "installing$tools" 900 env CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR=target/tools \
        cargo install --debug --locked --quiet $tools
    rm -rf target/tools
fi
step "licences, bans and sources (cargo deny)" 120 cargo deny check licenses bans sources
step "no dependency is unused (cargo machete)" 60 cargo machete
step "tests: build" 900 cargo test --workspace --no-run
: >"$beside/tests-built"
until [ -e "$beside/released" ]; do sleep 1; done

# The tests of each crate by itself, with the same features. A library or a program that no harness
# can hold is left out. No documentation has tests (`prose/src/examples.rs`).
own_tests() {
    step "each crate's own tests: units" 600 "${test[@]}" --exclude holdfast-preload --lib
    step "each crate's own tests" 600 "${test[@]}" --exclude holdfast-enter --exclude holdfast-e2e \
        --exclude holdfast-siege --exclude holdfast-model --bins --test '*'
}

own_tests_and_suites() {
    own_tests
    suites
}

# Most tests wait more than they compute, so three things are done at a time.
if [ -n "$quick" ]; then
    join
    own_tests
    step "end to end: basics, crash_sqlite, names" 300 "${test[@]}" --test basics --test crash_sqlite --test names
    summary+=("NOT RUN everything else: bash test.sh")
else
    lane own-tests own_tests_and_suites
    suites
    join
    # A global sync by any other suite would commit what this one looks at.
    step "end to end: commits" 300 "${test[@]}" --test commits -- --test-threads=1
    # The siege has the disk to itself: beside others a case was seen to take minutes.
    lane bugs bugs
    sieges
    lane kills kills
    lane cuts cuts
    others
    join
fi
rm -rf "$beside"

# What was attacked, and how often: added up from the lines that the suites print, `tally: NAME:
# WHAT N, WHAT N; MORE`.
attacked() {
    awk -v seconds="$SECONDS" '
        function told(what) { return what in sum ? sum[what] : "none" }
        {
            line = substr($0, 8)
            at = index(line, ": ")
            name = substr(line, 1, at - 1)
            line = substr(line, at + 2)
            at = index(line, ";")
            counts = split(substr(line, 1, at - 1), count, ", ")
            for (i = 1; i <= counts; i++) {
                if (!match(count[i], / [0-9]+$/)) continue
                what = substr(count[i], 1, RSTART - 1)
                number = substr(count[i], RSTART + 1) + 0
                if (name ~ /^native /) continue
                sum[what] += number
                if (what == "crash images" && name != "simulator") sum["images with bugs"] += number
                if (what == "histories" && name != "simulator") sum["known histories"] += number
                if (what == "power cuts") {
                    kind = name ~ /guest/ ? "machines" : name ~ /siege|calibration/ ? "copies" : "ioctl"
                    if (name ~ /forgetful|^power cuts/) kind = "disks"
                    sum["power cuts " kind] += number
                }
            }
        }
        END {
            printf "histories explored:    %s, of which known ones %s\n", told("histories"), told("known histories")
            printf "crash images checked:  %s, of which with deliberate bugs %s\n", told("crash images"), \
                told("images with bugs")
            printf "kills:                 %s (program %s, keeper %s, both %s, supervisor %s, all %s)\n", told("kills"), \
                told("of the program"), told("of the keeper"), told("of keeper and program"), \
                told("of the supervisor"), told("of all")
            printf "power cuts:            %s (by ioctl %s, of forgetful disks %s, of whole machines %s, copies %s)\n", \
                told("power cuts"), told("power cuts ioctl"), told("power cuts disks"), told("power cuts machines"), \
                told("power cuts copies")
            printf "short sequences:       %s\n", told("sequences")
            printf "canaries caught:       %s of %s\n", told("canaries caught"), told("canaries")
            printf "rules missed:          %s of %s taken out\n", told("rules missed"), told("rules taken out")
            printf "schedules of the core: %s\n", told("schedules")
            printf "hostile pools:         %s\n", told("inputs")
            printf "conformance checks:    %s\n", told("checks")
            printf "calls compared:        %s\n", told("calls compared")
            printf "seconds:               %s\n", seconds
        }' "$tally"
}

echo
echo "seeds:"
awk '{
    line = substr($0, 8)
    at = index(line, ": ")
    if (!match(line, /seed [^,]*/)) next
    name = substr(line, 1, at - 1)
    if (!(name in seeds)) names[++named] = name
    if (++count[name] <= 4) seeds[name] = seeds[name] " " substr(line, RSTART + 5, RLENGTH - 5)
}
END { for (i = 1; i <= named; i++) print "    " names[i] ":" seeds[names[i]] (count[names[i]] > 4 ? " and others" : "") }' "$tally"

echo
echo "== Holdfast tests, $SECONDS s"
printf '%s\n' "${summary[@]}"
echo
echo "what was attacked:"
attacked
if [ "$failed" -eq 0 ]; then echo "all passed"; else echo "SOME FAILED"; fi
exit "$failed"
