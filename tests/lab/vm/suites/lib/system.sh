# Common parts of the suites of the whole system: a publisher, listeners, and the checks.
# A suite that sources it ends at the first failed check, and prints the logs.
. /lab/suites/lib/metrics.sh
export PATH=/lab/bin:$PATH TICKCAST_NO_PROGRESS=1
set -u
work=/tmp/system
mkdir -p $work
address=${address:-10.1.0.1}

fail() {
    echo "FAILED: $*"
    for log in $work/*.log; do
        echo "--- $log"
        tail -n 24 "$log"
    done
    exit 1
}
trap 'fail "the time is over"' TERM
says() { echo "ok: $*"; }

# input N SUBSCRIBERS: N records once SUBSCRIBERS subscribers have joined, of a real capture if one is
# present. With $endless, the input is as long as N.
input() {
    local pace='"pace": { "messages_per_s": '${rate:-4000}' }'
    [ "${rate:-}" != max ] || pace='"pace": "max"'
    local capture
    capture=$(ls /lab/bin/*.pcap* 2>/dev/null | head -n 1)
    if [ -n "$capture" ] && [ -z "${endless:-}" ]; then
        echo "{ \"source\": 1, \"kind\": \"capture\", \"file\": \"$capture\", \"records_max\": $1, \"wait_for_subscribers\": $2, $pace }"
    else
        [ -n "${endless:-}" ] || echo "NO CAPTURE CAME ALONG (TICKCAST_DATA): these are simulated records, not real ones" >&2
        echo "{ \"source\": 1, \"kind\": \"simulator\", \"seed\": 5, \"symbols\": 50, \"records_max\": $1, \"wait_for_subscribers\": $2, $pace }"
    fi
}

# verbs [KEY=VALUE…]: a fan-out by verbs, as JSON.
verbs() {
    local more=
    for pair in "$@"; do more="$more, \"${pair%%=*}\": ${pair#*=}"; done
    echo "{ \"transport\": \"verbs\", \"lines\": [{ \"group\": \"239.9.1.1\", \"interface\": \"$address\" }]$more }"
}
udp() { echo "{ \"transport\": \"udp\", \"lines\": [{ \"group\": \"239.9.2.1:7500\", \"interface\": \"$address\" }] }"; }

# publish NAME PORT RECORDS SUBSCRIBERS FAN_OUTS: starts a publisher; its process id is in $publisher, and
# its admin port in $admin.
publish() {
    admin=$(($2 + 1000))
    cat >$work/$1.json <<END
{ "name": "$1", "control": "${control:-$address}:$2", "admin": "${control:-$address}:$admin", "interface": "$address", "ttl": 1, "digest": true, "linger_ms": 300000,
  ${more:-}
  "channels": [{ "id": 1, "name": "all", "slot_len": ${slot_len:-1024}, "slots": ${slots:-16384}, "peak_datagrams_per_s": 4000, "fan_out": [$5] }],
  "inputs": [$(input "$3" "$4")] }
END
    rm -f $work/$1.ready $work/$1.summary
    RUST_LOG=info tickcast-publisher --config $work/$1.json --ready-file $work/$1.ready --summary $work/$1.summary \
        >>$work/$1.log 2>&1 &
    publisher=$!
    for _ in $(seq 6000); do
        [ ! -s $work/$1.ready ] || return 0
        kill -0 $publisher 2>/dev/null || break
        sleep 0.05
    done
    fail "the publisher $1 did not start"
}

# within SECONDS WHAT COMMAND…: waits until the command succeeds.
within() {
    local _
    for _ in $(seq $(($1 * 10))); do
        "${@:3}" && return
        sleep 0.1
    done
    fail "not within $1 s: $2"
}

# flowing N: waits until the publisher that started last has built N more datagrams of records. Heartbeats
# don't count: a slow machine sends hundreds of them before all subscribers have joined.
built() { scraped "${control:-$address}" $admin tickcast_publisher_built_datagrams_total 'kind="stream"'; }
flowing() {
    local until=$(($(built) + $1))
    within 600 "$until datagrams are built" at_least $until built
}

# logged NAME TEXT: waits until a log contains the text.
logged() { within 600 "$1 says: $2" grep -q "$2" $work/$1.log; }

# subscribe NAME PORT ARGUMENTS…: starts a listener; its process id is in ${subscriber[NAME]}.
declare -A subscriber
subscribe() {
    local name=$1 port=$2
    shift 2
    tickcast --log info listen --connect "${control:-$address}:$port" --channel all --from oldest --name "$name" \
        --digest --format count --every 3600 --quiet --join-timeout 600 --duration 1200 --summary $work/$name.summary "$@" \
        >$work/$name.log 2>&1 &
    subscriber[$name]=$!
}

# Prints a number or text of a summary, the first of that name.
value() { sed -n 's/^ *"'"$2"'": "\{0,1\}\([^",]*\)"\{0,1\},\{0,1\}$/\1/p' $work/$1.summary | head -n 1; }

# whole NAME PUBLISHER: checks that a listener has ended by itself, and delivered exactly the published
# records.
whole() {
    wait ${subscriber[$1]} || { at=$? && cat $work/$1.log $work/$1.summary && fail "$1 ended with exit code $at"; }
    local digest expected
    digest=$(value $1 digest) expected=$(value $2 digest)
    [ -n "$expected" ] && [ "$digest" = "$expected" ] || fail "$1 has digest '$digest', published was '$expected'"
    [ "$(value $1 delivered_records)" = "$(value $2 published_records)" ] || fail "$1 has another number of records"
}

by() { grep -q "receives by $2 multicast" $work/$1.log || fail "$1 does not receive by $2"; }
repaired() { [ "$(value $1 missing_recovered)" -gt 0 ] || fail "$1 repaired nothing: there was no loss"; }

# resources: prints the number of resources of all devices, by kind. It reads the counts only: the list of a
# kind follows pointers into processes that are ending, on which Linux 6.1 can crash.
resources() {
    rdma resource show | awk '{ for (at = 3; at < NF; at += 2) count[$at] += $(at + 1) }
        END { for (n = split("qp cq mr pd cm_id", kinds, " "); n > 0; n--) print kinds[n], count[kinds[n]] + 0 }'
}
# Succeeds if no process has a device open, and only queue pairs remain, each with its PD and two CQs. That
# is a leak of Soft-RoCE (Linux 6.1): rxe_attach_mcast finds the group before it takes the lock. If the
# group's last member leaves in between, the queue pair stays attached to a dead group for ever.
soft_roce_leaked() {
    local descriptor
    for descriptor in /proc/[0-9]*/fd/*; do
        case $(readlink "$descriptor") in */uverbs*) return 1 ;; esac
    done
    { echo "$before" && resources; } | awk '$1 in was { more[$1] = $2 - was[$1]; next } { was[$1] = $2 }
        END { exit !(more["qp"] > 0 && more["pd"] == more["qp"] && more["cq"] == 2 * more["qp"] && !more["mr"] && !more["cm_id"]) }'
}
# same_resources WHAT: waits until the devices hold what they held before WHAT, which has ended.
same_resources() {
    for _ in $(seq 1000); do
        [ "$(resources)" != "$before" ] || return 0
        sleep 0.05
    done
    if soft_roce_leaked; then
        echo "lab: Soft-RoCE leaked a queue pair that joined while the last member left: $(resources | tr '\n' ' ')"
        before=$(resources)
        return 0
    fi
    dmesg | tail -n 20
    fail "$1 leaves something behind: $(resources | tr '\n' ' ')before $(echo "$before" | tr '\n' ' ')"
}
