# Removes our directory in the target.
printf 'ok\n'
rm -rf -- "$1"
finish
