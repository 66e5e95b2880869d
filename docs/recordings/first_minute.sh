# Typed into a terminal by record.py: `nox -s recording` makes docs/images/first-minute.svg of it.
cd "$(mktemp -d)" || exit
trap 'ottla broker stop --data-dir ./data > /dev/null 2>&1' EXIT

run() {
  printf '\033[1;36m$\033[0m '
  for ((i = 0; i < ${#1}; i++)); do
    printf '%s' "${1:i:1}"
    sleep 0.04
  done
  sleep 0.3
  printf '\n'
  eval "$1"
  sleep 1.5
}

run 'ottla broker start --data-dir ./data --daemon'
run 'ottla topic create letters --partitions 3'
run 'seq 1 100000 | ottla produce letters'
run 'ottla consume letters --from-beginning --max-messages 3 --format "{partition} {offset} {value}"'
run 'kcat -b 127.0.0.1:9092 -t letters -C -e -q | wc -l'
run 'ottla topic describe letters'
sleep 3
