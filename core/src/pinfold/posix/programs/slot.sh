# What a slot says.
printf 'ok\n'
[ -f "$1" ] && cat -- "$1"
finish
