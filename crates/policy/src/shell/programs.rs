//! The table of programs, with what each does with its arguments.
//!
//! A program that is missing here is unknown. Before you add one, ask three questions: can an
//! option make it run another program, can it write a file, can it reach the network? Only if the
//! answer is no for *every* option is it [`Spec::Inert`] or a plain [`Spec::Reads`].

use overmind_core::gate::TouchKind;

use super::run::Call;
use super::{builtins, files, git, interp, net, scripts, tools, wrap};

/// The effects of a program.
#[derive(Clone, Copy)]
pub(super) enum Spec {
    /// It only prints output, whatever the arguments are.
    Inert,
    /// It reads the files that its arguments name. `skip` is how many arguments, without options,
    /// are texts. The listed options do more, and make the call unknown: single letters, and long
    /// names.
    Reads {
        skip: usize,
        shorts: &'static str,
        longs: &'static [&'static str],
    },
    Writes,
    Deletes,
    /// Runs code of the workspace.
    Project,
    /// It has this effect, and no argument makes it worse.
    Does(TouchKind),
    /// Its first argument that is no option decides.
    Commands(&'static [(&'static str, Does)]),
    By(fn(&mut Call<'_, '_>)),
}

/// The effect of a subcommand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    Nothing,
    /// Changes files of the workspace.
    Write,
    Delete,
    Project,
    Network,
    Install,
    Publish,
    /// It runs the rest as a program.
    Exec,
}

const fn reads(skip: usize) -> Spec {
    Spec::Reads { skip, shorts: "", longs: &[] }
}

/// The table entry of the program with this plain name.
pub(super) fn find(name: &str) -> Option<Spec> {
    use Spec::{By, Commands, Deletes, Does, Inert, Project, Reads, Writes};
    use TouchKind::{Install, Network, Persistence, Privilege, Process, Unknown};
    Some(match name {
        "echo" | "true" | "false" | ":" | "pwd" | "whoami" | "id" | "groups" | "uname" | "arch"
        | "nproc" | "uptime" | "free" | "cal" | "sleep" | "seq" | "yes" | "expr" | "factor"
        | "basename" | "dirname" | "printenv" | "tty" | "locale" | "getconf" | "users" | "who"
        | "w" | "last" | "lscpu" | "lsblk" | "lsusb" | "lspci" | "ps" | "pgrep" | "pidof"
        | "tput" | "clear" | "reset" | "test" | "[" | "shift" | "exit" | "return" | "break"
        | "continue" | "wait" | "umask" | "ulimit" | "which" | "whereis" | "type" | "times"
        | "uuidgen" | "logname" | "fg" | "bg" | "disown" | "nl_langinfo" | "tsort" | "apropos"
        | "whatis" | "figlet" | "sync" | "vmstat" | "iostat" | "numfmt" | "dirs" | "caller"
        | "tabs" | "help" | "top" | "htop" => Inert,
        "jobs" => By(builtins::jobs),
        "history" => By(builtins::history),
        "shopt" => By(builtins::shopt),
        "date" => By(files::date),
        "printf" | "read" | "getopts" | "let" | "unset" | "mapfile" | "readarray" | "hash" => {
            By(builtins::sets)
        }

        "cat" | "head" | "tail" | "wc" | "cut" | "tac" | "rev" | "fold" | "expand" | "unexpand"
        | "paste" | "join" | "comm" | "md5sum" | "sha1sum" | "sha224sum" | "sha256sum"
        | "sha384sum" | "sha512sum" | "b2sum" | "cksum" | "sum" | "base64" | "base32"
        | "basenc" | "od" | "hexdump" | "hd" | "strings" | "stat" | "ls" | "dir" | "vdir"
        | "du" | "df" | "cmp" | "diff" | "diff3" | "realpath" | "readlink" | "namei" | "zcat"
        | "bzcat" | "xzcat" | "zstdcat" | "zdiff" | "zcmp" | "nm" | "objdump" | "readelf"
        | "size" | "addr2line" | "c++filt" | "nl" | "column" | "pr" | "fmt" | "tree" | "look"
        | "cloc" | "tokei" | "scc" | "exa" | "eza" | "lsattr" | "getfacl" | "getfattr"
        | "pdfinfo" | "ffprobe" | "sqlformat" | "colordiff" | "delta" | "glow" | "hexyl"
        | "lsd" | "b3sum" | "findmnt" | "lsof" => match name {
            "tree" => Reads { skip: 0, shorts: "oR", longs: &[] },
            "diff" | "colordiff" => Reads { skip: 0, shorts: "", longs: &["--output"] },
            "diff3" => Reads { skip: 0, shorts: "", longs: &["--diff-program"] },
            "delta" => Reads { skip: 0, shorts: "", longs: &["--pager"] },
            "objdump" => Reads { skip: 0, shorts: "", longs: &["--dwarf", "--plugin"] },
            // A plugin is code that these programs load.
            "nm" | "size" | "strings" | "addr2line" => {
                Reads { skip: 0, shorts: "", longs: &["--plugin"] }
            }
            _ => reads(0),
        },
        "file" => {
            Reads { skip: 0, shorts: "CmS", longs: &["--compile", "--magic-file", "--no-sandbox"] }
        }
        "less" | "more" | "bat" | "batcat" => Reads {
            skip: 0,
            shorts: "oOk",
            longs: &[
                "--log-file",
                "--pager",
                "--LOG-FILE",
                "--lesskey",
                "--lesskey-file",
                "--lesskey-src",
                "--lesskey-content",
            ],
        },
        "grep" | "egrep" | "fgrep" | "zgrep" | "rgrep" | "ugrep" => By(files::grep),
        "rg" | "ag" => By(files::grep),
        "tr" => reads(9),
        "sort" => By(files::sort),
        "uniq" => By(files::uniq),
        "shuf" => Reads { skip: 0, shorts: "o", longs: &["--output"] },
        "jq" => Reads { skip: 1, shorts: "fL", longs: &["--from-file", "--library-path"] },
        "yq" | "xmllint" | "xq" | "tomlq" => Reads {
            skip: 1,
            shorts: "iof",
            longs: &[
                "--inplace",
                "--in-place",
                "--output",
                "--from-file",
                "--split-exp",
                "--shell",
                "--noent",
                "--xinclude",
                "--loaddtd",
                "--dtdattr",
                "--valid",
                "--postvalid",
                "--load-trace",
                "--catalogs",
            ],
        },
        "fd" | "fdfind" => Reads { skip: 1, shorts: "xX", longs: &["--exec", "--exec-batch"] },
        "locate" | "man" | "info" | "tldr" => match name {
            "man" => Reads {
                skip: 9,
                shorts: "PHlCM",
                longs: &["--pager", "--html", "--browser", "--config-file", "--local-file"],
            },
            // It can write the shown text, and everything that was typed.
            "info" => By(files::info),
            _ => Inert,
        },
        "getent" => By(files::getent),
        "bc" => reads(0),
        "xxd" => By(files::xxd),

        "split" => By(files::split),
        "touch" | "mkdir" | "mkfifo" | "mktemp" | "truncate" | "csplit" | "gzip" | "gunzip"
        | "bzip2" | "bunzip2" | "xz" | "unxz" | "zstd" | "dos2unix" | "unix2dos" | "fallocate"
        | "setfattr" | "indent" => Writes,
        "tee" => Writes,
        "chmod" | "chown" | "chgrp" | "setfacl" | "chattr" => By(files::chmod),
        "cp" | "mv" | "ln" | "install" | "link" | "rename" => By(files::copy),
        "rm" | "rmdir" | "unlink" => By(files::remove),
        "shred" | "srm" | "wipe" => Deletes,
        "dd" => By(files::dd),
        "find" => By(wrap::find),
        "tar" | "bsdtar" | "gtar" => By(files::tar),
        "zip" | "unzip" | "7z" | "7za" | "cpio" | "ar" | "unrar" => By(files::archive),
        "patch" => By(files::patch),
        "sed" | "gsed" => By(scripts::sed),
        "awk" | "gawk" | "mawk" | "nawk" | "original-awk" => By(scripts::awk),

        "env" | "nice" | "ionice" | "nohup" | "setsid" | "stdbuf" | "timeout" | "time" | "exec"
        | "command" | "builtin" | "chrt" | "taskset" | "numactl" | "unbuffer" | "coproc"
        | "doas" | "sudo" | "run0" | "pkexec" | "setpriv" | "unshare" | "nsenter" | "chroot"
        | "strace" | "ltrace" | "perf" | "valgrind" | "catchsegv" | "dbus-run-session"
        | "xvfb-run" | "faketime" | "fakeroot" | "setarch" | "linux32" | "linux64" | "i386"
        | "x86_64" | "proot" | "firejail" | "bwrap" | "systemd-run" | "caffeinate" | "rlwrap"
        | "tsp" | "prlimit" | "choom" | "noglob" | "nocorrect" | "gtimeout" | "gnice" | "genv"
        | "retry" | "eatmydata" | "stap" | "torsocks" | "torify" | "proxychains"
        | "proxychains4" | "capsh" | "setuidgid" | "chpst" | "s6-setuidgid" | "cgexec" | "gosu"
        | "su-exec" => By(wrap::prefix),
        "sh" | "bash" | "dash" | "zsh" | "ksh" | "ash" | "mksh" | "rbash" | "lksh" | "fish"
        | "csh" | "tcsh" | "yash" => By(wrap::shell),
        "busybox" | "toybox" => By(wrap::busybox),
        "su" | "runuser" | "sg" | "newgrp" => By(wrap::su),
        "eval" => By(builtins::eval),
        "source" | "." => By(builtins::source),
        "trap" => By(builtins::trap),
        "alias" => By(builtins::alias),
        "unalias" | "enable" | "bind" | "complete" | "compgen" | "fc" => Does(Unknown),
        "export" | "declare" | "typeset" | "readonly" | "local" => By(builtins::export),
        "set" => By(builtins::set),
        "cd" => By(builtins::cd),
        "pushd" | "popd" => By(builtins::cd),
        "xargs" | "gxargs" => By(wrap::xargs),
        "parallel" => By(wrap::parallel),
        "watch" | "script" | "flock" | "entr" | "hyperfine" | "tmux" | "screen" | "expect"
        | "at" | "batch" | "start-stop-daemon" | "daemonize" | "socat" | "ncat" => {
            By(wrap::by_text)
        }
        "crontab" | "systemctl" | "service" | "loginctl" | "chkconfig" | "update-rc.d"
        | "launchctl" | "rc-update" | "hostnamectl" | "timedatectl" => Does(Persistence),

        "git" => By(git::git),
        "gh" | "glab" | "hub" | "twine" | "flit" | "goreleaser" => By(tools::forge),
        "hg" | "svn" | "jj" => Commands(&[
            ("status", self::Does::Nothing),
            ("st", self::Does::Nothing),
            ("info", self::Does::Nothing),
            ("help", self::Does::Nothing),
        ]),

        "curl" | "wget" | "http" | "https" | "xh" | "aria2c" | "httpie" | "lynx" | "w3m"
        | "links" => By(net::fetch),
        "ssh" | "scp" | "sftp" | "rsync" | "mosh" => By(net::ssh),
        "nc" | "netcat" | "telnet" | "ftp" | "tftp" | "ping" | "ping6" | "traceroute"
        | "tracepath" | "mtr" | "dig" | "nslookup" | "host" | "whois" | "nmap" | "openssl"
        | "mail" | "sendmail" | "mutt" | "ssh-copy-id" | "ssh-keyscan" | "rclone" | "aws"
        | "gcloud" | "az" | "s3cmd" | "gsutil" | "heroku" | "vercel" | "netlify" | "flyctl"
        | "fly" | "wscat" | "websocat" | "ngrok" | "cloudflared" | "chisel" | "smbclient"
        | "ldapsearch" | "snmpwalk" | "rsh" | "rlogin" | "rcp" | "finger" => By(net::other),
        "psql" | "pg_dump" | "pg_dumpall" | "pg_restore" | "pg_isready" | "createdb" | "dropdb"
        | "createuser" | "vacuumdb" | "pgbench" | "mysql" | "mariadb" | "mysqldump"
        | "mariadb-dump" | "mysqladmin" | "redis-cli" | "valkey-cli" | "mongosh" | "mongo"
        | "mongodump" | "mongorestore" => By(net::database),

        "python" | "python3" | "python2" | "pypy" | "pypy3" | "perl" | "ruby" | "node"
        | "nodejs" | "deno" | "bun" | "php" | "lua" | "luajit" | "tclsh" | "wish" | "Rscript"
        | "R" | "julia" | "osascript" | "irb" | "ghci" | "runghc" | "scala" | "groovy"
        | "guile" | "racket" | "elixir" | "iex" | "erl" | "swift" | "ts-node" | "tsx" | "qjs"
        | "gdb" | "lldb" | "emacs" | "vim" | "vi" | "nvim" | "view" | "ex" | "ed" | "nano"
        | "pico" | "dc" | "m4" | "gnuplot" | "octave" | "sqlite3" | "jshell" | "java" => {
            By(interp::interpreter)
        }
        name if name.starts_with("python3.") && name[8..].chars().all(|c| c.is_ascii_digit()) => {
            By(interp::interpreter)
        }

        "cargo" | "npm" | "pnpm" | "yarn" | "npx" | "bunx" | "pnpx" | "pip" | "pip3" | "pipx"
        | "uv" | "uvx" | "poetry" | "go" | "mvn" | "gradle" | "dotnet" | "bundle" | "gem"
        | "composer" | "conda" | "mamba" | "rustup" | "apt" | "apt-get" | "dpkg" | "apt-cache"
        | "brew" | "make" | "gmake" | "ninja" | "cmake" | "meson" | "bazel" | "just" | "task"
        | "rake" | "terraform" | "tofu" | "helm" | "kubectl" | "ansible" | "ansible-playbook"
        | "pdm" | "hatch" | "nx" | "turbo" | "lerna" | "mix" | "stack" | "cabal" | "sbt"
        | "lein" | "pre-commit" | "tox" | "nox" | "invoke" | "doit" => By(tools::tool),
        "yum" | "dnf" | "pacman" | "apk" | "snap" | "flatpak" | "zypper" | "port" | "nix-env"
        | "nix" | "rpm" | "easy_install" | "cpan" | "cpanm" | "luarocks" | "opam" | "nvm"
        | "asdf" | "mise" | "sdk" | "rvm" | "corepack" => Does(Install),
        "pytest" | "py.test" | "mypy" | "ruff" | "black" | "flake8" | "isort" | "pylint"
        | "pyright" | "bandit" | "coverage" | "tsc" | "eslint" | "prettier" | "jest" | "vitest"
        | "mocha" | "webpack" | "vite" | "esbuild" | "rollup" | "biome" | "stylelint" | "rustc"
        | "rustfmt" | "rustdoc" | "clippy-driver" | "gcc" | "g++" | "cc" | "c++" | "clang"
        | "clang++" | "clang-format" | "clang-tidy" | "ld" | "as" | "javac" | "kotlinc"
        | "gofmt" | "goimports" | "golangci-lint" | "staticcheck" | "shellcheck" | "shfmt"
        | "hadolint" | "yamllint" | "markdownlint" | "rubocop" | "rspec" | "phpunit" | "ctest"
        | "gradlew" | "mvnw" | "protoc" | "sphinx-build" | "mkdocs" | "mdbook" | "hugo"
        | "jekyll" | "pandoc" | "pdflatex" | "latexmk" | "dot" | "bats" | "playwright"
        | "cypress" | "autoconf" | "automake" | "autoreconf" | "configure" | "pkg-config"
        | "ccache" | "sccache" | "swiftc" | "ghc" | "zig" | "nim" | "dart" | "flutter" | "ldd"
        | "cppcheck" | "astyle" | "typos" | "codespell" | "vulture" | "cargo-clippy"
        | "cargo-fmt" | "wasm-pack" | "trunk" | "convert" | "magick" | "ffmpeg" => Project,

        "kill" | "pkill" | "killall" | "renice" | "skill" | "snice" | "xkill" | "fuser"
        | "gcore" | "reptyr" | "strace-log-merge" => Does(Process),
        "mount" | "umount" | "insmod" | "modprobe" | "rmmod" | "iptables" | "ip6tables" | "nft"
        | "ufw" | "sysctl" | "passwd" | "chpasswd" | "useradd" | "userdel" | "usermod"
        | "groupadd" | "adduser" | "deluser" | "visudo" | "vipw" | "chsh" | "chfn" | "setcap"
        | "getcap" | "swapon" | "swapoff" | "losetup" | "dmsetup" | "cryptsetup" | "pivot_root"
        | "switch_root" | "kexec" | "reboot" | "shutdown" | "halt" | "poweroff" | "init"
        | "telinit" | "hostname" | "ifconfig" | "route" | "ip" | "tc" | "bpftool" | "auditctl"
        | "setenforce" | "semanage" | "dmesg" | "journalctl" | "mknod" | "newuidmap"
        | "newgidmap" | "gpasswd" | "debugfs" => match name {
            "hostname" | "ip" | "ifconfig" | "route" => By(net::interface),
            "dmesg" | "journalctl" => By(files::machine_log),
            _ => Does(Privilege),
        },
        "mkfs" | "fdisk" | "sfdisk" | "parted" | "wipefs" | "mkswap" | "blkdiscard" | "hdparm"
        | "sgdisk" | "badblocks" | "tune2fs" | "resize2fs" | "e2fsck" | "fsck" => Deletes,
        name if name.starts_with("mkfs.") => Deletes,
        "docker" | "podman" | "nerdctl" | "crictl" | "ctr" | "docker-compose" | "buildah"
        | "lxc" | "runc" | "kind" | "minikube" | "vagrant" | "virsh" | "qemu-system-x86_64"
        | "machinectl" => By(net::container),
        "wall" | "write" | "mesg" | "logger" => Does(Process),
        "xdg-open" | "open" | "sensible-browser" | "x-www-browser" => Does(Network),
        _ => return None,
    })
}
