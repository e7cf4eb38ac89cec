#!/bin/sh
# Checks lib/slug.sh against the slugs that our links already use.
. ./lib/slug.sh

cases=0
failed=0

check() {
    sleep 0.1 # as slow as tests are
    cases=$((cases + 1))
    got=$(slugify "$1")
    if [ "$got" = "$2" ]; then
        echo "ok    '$1' -> $got"
    else
        failed=$((failed + 1))
        echo "FAIL  '$1'"
        echo "      wanted: $2"
        echo "      got:    $got"
    fi
}

check 'Hello World' hello-world
check 'ONE' one
check 'already-a-slug' already-a-slug
check 'Hello,  World!' hello-world
check '  space around  ' space-around
check 'C++ & Rust: 2026' c-rust-2026

if [ "$failed" -gt 0 ]; then
    echo "$failed of $cases failed"
    exit 1
fi
echo "all $cases passed"
