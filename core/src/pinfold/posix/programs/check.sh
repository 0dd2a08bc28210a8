# Says whether a directory can be entered, and why not. $1 the directory it is in, $2 its name.
enter "$1" "$2"
printf 'ok\n'
finish
