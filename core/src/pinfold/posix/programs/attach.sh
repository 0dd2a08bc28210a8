# Starts a program in a directory that was entered and checked. $1 the directory it is in, $2 its
# name; then NAME=VALUE..., the program and its arguments, for env.
enter "$1" "$2"
shift 2
unset PWD OLDPWD SHLVL
exec env -- "$@"
