# slugify TEXT: the text as part of a URL: lower case, words joined by single dashes.
slugify() {
    printf '%s' "$1" |
        tr '[:upper:]' '[:lower:]' |
        tr -c 'a-z0-9' '-' |
        sed -e 's/^-*//' -e 's/-*$//'
}
