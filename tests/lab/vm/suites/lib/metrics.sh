# Reads the metrics of a publisher.

# scraped ADDRESS PORT NAME [LABEL]: prints a present value, by a label such as change="leased". A busy
# endpoint may close the connection unanswered, so an empty answer is asked for again.
scraped() {
    local value=
    for _ in 1 2 3 4 5; do
        exec 3<>/dev/tcp/$1/$2 || return
        printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
        value=$(grep "^$3[{ ]" <&3 | grep -F -- "${4:-}" | sed -n '1s/.* //p')
        exec 3>&-
        [ -z "$value" ] || break
        sleep 0.2
    done
    echo "$value"
}
# at_least N COMMAND…: succeeds if the command prints a number that is not below N.
at_least() { [ "$("${@:2}" 2>/dev/null)" -ge "$1" ] 2>/dev/null; }
