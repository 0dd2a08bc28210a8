# Lets the owner in where it has shut itself out. $1 the directory. Answers with the modes that were:
# `MODE NAME//` each, the outer before the inner.
enter "$1" .
printf 'ok\n'
ours='.pinfold-tmp-*' form='%a %n//'
find . -mindepth 1 -name "$ours" -prune -o -type d ! -perm -500 \
  -exec stat -c "$form" -- {} \; -exec chmod u+rx -- {} \; 2>/dev/null
find . -mindepth 1 -name "$ours" -prune -o -type f ! -perm -400 \
  -exec stat -c "$form" -- {} \; -exec chmod u+r -- {} \; 2>/dev/null
finish
