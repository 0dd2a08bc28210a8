# What a slot says. No other process is started: it may be read because there can't be any.
printf 'ok\n'
if [ -f "$1" ]; then
  while IFS= read -r line; do printf '%s\n' "$line"; done <"$1"
fi
finish
