# Common parts of the suites that run the conformance suite over verbs.
. /lab/suites/lib/tests.sh
export TICKCAST_RDMA_ADDRESS=10.1.0.1

# cases TURN OF: runs every OF-th case over one repair ladder, which the seed of the day and TURN choose. The long
# run has all cases and ladders.
cases() {
    local ladders=(nack read read_then_nack) of=$2 turn=$((LAB_SEED + $1)) ladder names status=0
    if [ ! -e /lab/long ]; then
        ladders=("${ladders[turn % 3]}")
        echo "seed $LAB_SEED: one of $of cases, repairs by the ladder $ladders"
    else
        of=1
    fi
    for ladder in "${ladders[@]}"; do
        names=$(/lab/bin/conformance-* --ignored --list | sed -n "s/^\($ladder::.*\): test$/\1/p" |
            awk -v turn=$((turn / 3)) -v of=$of '(NR + turn) % of == 0')
        [ -n "$names" ] || { echo "NOT SO: no case is repaired by $ladder" && return 1; }
        run_tests conformance --test-threads=1 --exact $names || status=$?
    done
    return $status
}
