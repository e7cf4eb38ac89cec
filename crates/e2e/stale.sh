# Prints why the program whose path is given is not what the sources beside us say: it is missing, or a
# source of it is newer. Prints nothing when all is well. To be run where the workspace's Cargo.toml is.
#
# The compiler writes down which files each library was made from. A file that only tests are made
# from is not among those, and no build would make the program newer than it.
program=$1
if ! [ -x "$program" ]; then
    echo "there is no program at $program"
    exit
fi
sources=$(
    cat "$(dirname "$program")"/deps/overmind_*.d 2>&1 |
        sed -n 's/^[^ ]*\/libovermind_[a-z0-9]*-[0-9a-f]*\.rlib: //p' | tr ' ' '\n' |
        grep '^crates/' | grep -v '^crates/\(bench\|e2e\|testkit\)/' | sort -u
)
# What is gone since an older build is told on standard error, and is no source any more.
newer=$(find crates/overmind/src $sources -type f -newer "$program" 2>/dev/null | head -n 1)
if [ -n "$newer" ]; then
    echo "$program is older than its source $newer"
fi
