# What both boots of the services begin with: each step is told to the host with the guest's seconds,
# and the first that fails ends the boot with what systemd says of it.
set -eu
step=begin
tell() { echo "$*" >/dev/ttyS1; }
step() {
    step=$1
    tell "step $(cut -d ' ' -f 1 /proc/uptime) $1"
}
failed() {
    status=$?
    [ $status -ne 0 ] || return 0
    { systemctl --failed; journalctl -b --no-pager -o short-monotonic | tail -n 80; } >/dev/console 2>&1
    tell "failed: status $status in step $step"
}
trap failed EXIT
property() { systemctl show --property "$2" --value "$1"; }
