# Common parts of the repair suites: a publisher of simulated records, two listeners, and the checks. The
# publisher is at $interface and, over TCP, at $control; the listeners are at ${at[@]}. Their summaries
# are /tmp/NAME-publisher, /tmp/NAME-1 and /tmp/NAME-2.
. /lab/suites/lib/metrics.sh
export RUST_LOG=info
failed=0
# The publisher's audit file.
audit=/tmp/audit
interface=${interface:-dummy0} control=${control:-10.1.0.1}
number() {
    sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p" "$2" | head -n 1
}
digest() {
    grep -o '"digest": *"[0-9a-f]*"' "$1" | head -n 1
}
check() {
    eval "[ $1 ]" || { echo "NOT SO: $(eval echo "$1")" && failed=1; }
}

# publish NAME MORE: begins a session, which runs until it is killed; MORE is added to its config. It has
# $slots slots and $pace messages a second.
publish() {
    cat >"/tmp/$1.json" <<JSON
{ "name": "lab", "control": "$control:7400", "interface": "$interface", "ttl": 1, "digest": true,
  "admin": "$control:7480", "linger_ms": 300000, $2
  "channels": [{ "id": 1, "name": "equities", "slots": ${slots:-65536},
    "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.7.1:7500" }] }] }],
  "inputs": [{ "source": 1, "kind": "simulator", "seed": 1, "symbols": 20, "messages": 40000000,
    "wait_for_subscribers": ${waits:-2}, ${of:-} "pace": { "messages_per_s": ${pace:-3000} } }] }
JSON
    : >$audit
    /lab/bin/tickcast-publisher --config "/tmp/$1.json" --summary "/tmp/$1-publisher" --audit $audit 2>"/tmp/$1.log" &
    pids=($!)
}

# metric NAME [LABEL]: prints the publisher's present counter.
metric() { scraped $control 7480 "tickcast_publisher_$1" "${2:-}"; }
counted() { at_least "$2" metric "$1" "${3:-}"; }

# flowing N: waits until N more messages were published, in datagrams of at most six on average. A slow
# machine packs more into one datagram, and losses are of datagrams.
flowing() {
    local messages=$(metric published_messages_total) datagrams=$(metric built_datagrams_total 'kind="stream"')
    until_so counted published_messages_total $((messages + $1))
    until_so counted built_datagrams_total $((datagrams + $1 / 6)) 'kind="stream"'
}

# subscribe NAME N DROP ARGUMENT…: starts the listener risk-N with loss; its output, in $format, is /tmp/NAME-N.out.
subscribe() {
    /lab/bin/tickcast listen --name "risk-$2" --connect $control:7400 --interface "${at[$2 - 1]:-$interface}" --channel equities --format ${format:-count} \
        --every 60 --quiet --join-timeout ${patience:-300} --digest --drop "$3" --seed "$2" --summary "/tmp/$1-$2" "${@:4}" >"/tmp/$1-$2.out" 2>"/tmp/$1.$2" &
    pids+=($!)
}

# ended NAME COUNTER…: ends the session and waits for all processes; then COUNTER_1 and COUNTER_2 have the
# counters.
ended() {
    local name=$1 n of
    kill "${pids[0]}"
    for n in "${pids[@]}"; do
        wait "$n" || { echo "$name: a process ended with $?" && tail -n 8 "/tmp/$name.log" /tmp/$name.[12] && exit 1; }
    done
    for n in 1 2; do
        for of in delivered_records lost_records missing_recovered nacks_sent nack_link_nacks_sent "${@:2}"; do
            declare -g "${of}_$n=$(number $of "/tmp/$name-$n")"
        done
    done
}

# audited WHAT: prints how often that was audited.
audited() {
    grep -c "\"what\":\"$1\"" $audit
}

# until_so COMMAND…: waits until the command succeeds, on a machine of any speed: only a hang takes ten
# minutes. Without it, the rest of the suite makes no sense.
until_so() {
    local until=$((SECONDS + 600))
    while [ $SECONDS -lt $until ]; do
        "$@" && return
        sleep 0.25
    done
    echo "NOT SO within 600 s: $*"
    tail -n 12 /tmp/*.log /tmp/*.[12]
    cp $audit /tmp/*.log /tmp/*.[12] /lab/out
    kill "${pids[@]}"
    exit 1
}

# await WHAT TIMES: waits until that was audited this often.
audited_often() { [ "$(audited "$1")" -ge "$2" ]; }
await() { until_so audited_often "$1" "$2"; }

# await_of WHAT N…: waits until that was audited of each listener N. A slow machine may break the queue pair
# of one, and it is audited twice.
audited_of_all() {
    local n
    for n in "${@:2}"; do grep "\"what\":\"$1\"" $audit | grep -q "\"subscriber\":\"risk-$n\"" || return; done
}
await_of() { until_so audited_of_all "$@"; }

# same NAME N: checks that listener N has exactly the published records.
same() {
    [ -n "$(digest "/tmp/$1-$2")" ] && [ "$(digest "/tmp/$1-$2")" = "$(digest "/tmp/$1-publisher")" ] || {
        echo "$1: the digest of $2 differs" && failed=1
    }
}

# whole NAME GAPS: checks that both listeners have everything, and that more than GAPS gaps were repaired.
whole() {
    same "$1" 1
    same "$1" 2
    check "$lost_records_1 -eq 0 -a $lost_records_2 -eq 0 -a $missing_recovered_1 -gt $2"
}

# After a session, the device holds only the kernel's own resources.
nothing_left() {
    check "$(rdma resource show qp | grep -c 'type RC') -eq 0"
}
