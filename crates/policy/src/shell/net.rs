//! Programs that connect to other machines or to a container engine.

use overmind_core::gate::TouchKind;

use super::expand::{HOLE, HOME, SPLIT, is_static, shown};
use super::run::{Call, has_option, is_option, value_of};

/// The host of a URL or of `host:port/path`, in lower case; [`HOLE`] if two programs could read it
/// differently.
pub(crate) fn host_of(text: &str) -> String {
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) => (Some(scheme), rest),
        None => (None, text),
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = match (authority.rsplit_once('@'), scheme) {
        // These are `good.com@evil.com`, and texts with a backslash.
        (Some((user, host)), _)
            if user.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) =>
        {
            host
        }
        (Some(_), _) => return HOLE.to_string(),
        (None, _) => authority,
    };
    let (host, port) = host.rsplit_once(':').unwrap_or((host, ""));
    let plain = !host.is_empty()
        && host.chars().all(|c| c.is_ascii_alphanumeric() || c == '.' || c == '-')
        && port.chars().all(|c| c.is_ascii_digit())
        && scheme
            .is_none_or(|scheme| scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == '+'));
    if plain { host.trim_end_matches('.').to_ascii_lowercase() } else { HOLE.to_string() }
}

/// Names in a code that connect to another machine; see [`hosts_in_code`].
const SPEAKS: &[&str] = &[
    "urlopen",
    "urlretrieve",
    "requests.",
    "httpx.",
    "aiohttp",
    "fetch(",
    "http",
    "axios",
    "LWP",
    "open-uri",
    "URI.open",
    "file_get_contents",
    "create_connection",
    ".connect(",
    "smtplib",
    "ftplib",
    "paramiko",
    "XMLHttpRequest",
    "WebSocket",
    "curl",
    "wget",
    "TCPSocket",
    "IO::Socket",
];
/// Calls that take a bare host name.
const DIALS: &[&str] =
    &["create_connection", ".connect(", "SMTP", "FTP(", "Connection(", "TCPSocket", "Socket"];

/// The hosts that a piece of code reaches, as far as its text shows: addresses beside a call that
/// connects to one. An address that is only mentioned does not count, and computed ones are not
/// detected.
pub(super) fn hosts_in_code(code: &str) -> Vec<String> {
    let part = |c: char| c.is_ascii_alphanumeric() || ".-".contains(c);
    let mut hosts: Vec<String> = Vec::new();
    let mut add = |host: &str| {
        let host = host.trim_matches('.').to_ascii_lowercase();
        let name = host.rsplit('.').next().unwrap_or_default();
        let known =
            host.contains('.') && name.len() > 1 && name.chars().all(|c| c.is_ascii_alphabetic());
        let address = host.split('.').count() == 4
            && !host.starts_with("127.")
            && host != "0.0.0.0"
            && host.split('.').all(|part| part.parse::<u8>().is_ok());
        if (known && !host.ends_with(".localhost") || address) && !hosts.contains(&host) {
            hosts.push(host);
        }
    };
    // It must be a call, and not only the scheme of a mentioned address.
    let bare = code.replace("http://", "").replace("https://", "");
    if !SPEAKS.iter().any(|word| bare.contains(word)) {
        return hosts;
    }
    for (at, _) in code.match_indices("://") {
        let rest = &code[at + 3..];
        let authority = rest.split(|c: char| !part(c) && !"@:_%".contains(c)).next();
        let host = authority.and_then(|text| text.rsplit('@').next()).unwrap_or_default();
        add(host.split(':').next().unwrap_or_default());
    }
    if DIALS.iter().any(|word| code.contains(word)) {
        for word in code.split(['\'', '"', '`']).skip(1).step_by(2) {
            if word.chars().all(part) {
                add(word);
            }
        }
    }
    hosts
}

/// `curl`, `wget` and similar programs: every argument that is no option is an address.
pub(super) fn fetch(call: &mut Call<'_, '_>) {
    let args = call.args();
    call.act.near = true;
    const ELSEWHERE: &[&str] = &[
        "--location",
        "--location-trusted",
        "--resolve",
        "--connect-to",
        "--proxy",
        "--preproxy",
        "--config",
        "--unix-socket",
        "--abstract-unix-socket",
        "--doh-url",
        "--socks5",
        "--socks4",
        "--interface",
        "--netrc",
        "--netrc-file",
        "--cookie",
        "--cookie-jar",
        "--dns-servers",
        "--input-file",
        "--execute",
        "--use-askpass",
        "--recursive",
        "--mirror",
        "--post-file",
        "--body-file",
        "--next",
        "--variable",
    ];
    let mut hosts = 0;
    let mut n = 0;
    while let Some(arg) = args.get(n) {
        n += 1;
        if arg.contains([HOLE, SPLIT]) {
            call.act.touch(TouchKind::Network, HOLE.to_string());
            // The beginning still names a host.
            let begin = arg.split([HOLE, SPLIT]).next().unwrap_or_default();
            if !is_option(arg) && is_named(&host_of(begin)) {
                call.act.touch(TouchKind::Network, host_of(begin));
            }
            hosts += 1;
            continue;
        }
        if !is_option(arg) {
            let file =
                arg.strip_prefix("file://").or_else(|| arg.starts_with("file:").then(|| &arg[5..]));
            match file {
                Some(path) => call.path(TouchKind::Read, path),
                None => call.act.touch(TouchKind::Network, host_of(arg)),
            }
            hosts += 1;
            continue;
        }
        let next = args.get(n).cloned();
        let letters = arg.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
        let last = letters.and_then(|letters| letters.chars().last());
        let long = arg.split('=').next().unwrap_or_default();
        // These values are no addresses, or they are files.
        let takes = matches!(
            last,
            Some(
                'o' | 'H'
                    | 'X'
                    | 'd'
                    | 'u'
                    | 'A'
                    | 'e'
                    | 'm'
                    | 'F'
                    | 'T'
                    | 'b'
                    | 'c'
                    | 'w'
                    | 'K'
                    | 'x'
                    | 'E'
                    | 'U'
                    | 'P'
                    | 'Y'
                    | 'y'
                    | 'z'
                    | 'r'
                    | 'C'
                    | 'D'
            )
        ) && !(call.name() == "wget"
            && matches!(last, Some('c' | 'm' | 'r' | 'd' | 'H' | 'K' | 'E' | 'x' | 'F' | 'b')));
        let long_takes = matches!(
            long,
            "--output"
                | "--header"
                | "--request"
                | "--data"
                | "--data-raw"
                | "--data-binary"
                | "--data-urlencode"
                | "--user"
                | "--user-agent"
                | "--referer"
                | "--max-time"
                | "--connect-timeout"
                | "--form"
                | "--upload-file"
                | "--write-out"
                | "--cacert"
                | "--cert"
                | "--key"
                | "--retry"
                | "--output-dir"
                | "--json"
                | "--output-document"
                | "--directory-prefix"
                | "--timeout"
                | "--tries"
                | "--proxy"
                | "--preproxy"
                | "--connect-to"
                | "--resolve"
                | "--doh-url"
                | "--socks4"
                | "--socks5"
                | "--socks5-hostname"
                | "--unix-socket"
                | "--abstract-unix-socket"
                | "--config"
        ) && !arg.contains('=');
        let value = if let Some((_, value)) = arg.split_once('=').filter(|_| letters.is_none()) {
            Some(value.to_owned())
        } else if takes || long_takes {
            n += 1;
            next
        } else {
            None
        };
        let elsewhere = if call.name() == "wget" { "xKmri" } else { "LxK" };
        if has_option(std::slice::from_ref(arg), elsewhere, ELSEWHERE) {
            call.act.touch(TouchKind::Network, HOLE.to_string());
        }
        let writes = matches!(
            long,
            "--output"
                | "--output-document"
                | "--output-dir"
                | "--directory-prefix"
                | "--cookie-jar"
                | "--unix-socket"
                | "--dump-header"
                | "--trace"
        ) || matches!(last, Some('o' | 'O' | 'P' | 'c' | 'D'));
        let attached = letters
            .and_then(|letters| letters.find(['/', HOME]).map(|at| letters[at..].to_owned()));
        let proxies = last == Some('x') && call.name() != "wget"
            || ["--proxy", "--preproxy", "--socks", "--connect-to", "--resolve", "--doh-url"]
                .iter()
                .any(|option| long.starts_with(option));
        if let Some(value) = value.as_deref().filter(|_| proxies) {
            for host in value.split([':', '/', '@']).filter(|host| is_named(host)) {
                call.act.touch(TouchKind::Network, host.to_owned());
            }
        }
        for value in value.into_iter().chain(attached) {
            if writes && value != "-" {
                call.path(TouchKind::Write, &value);
            }
            let file = value.split('@').nth(1).map(str::to_owned);
            let upload = matches!(last, Some('T' | 'K' | 'E' | 'b'))
                || matches!(
                    long,
                    "--upload-file"
                        | "--config"
                        | "--cert"
                        | "--key"
                        | "--post-file"
                        | "--body-file"
                        | "--input-file"
                );
            if let Some(file) = file.filter(|_| !value.contains("://")) {
                call.path(TouchKind::Read, file.split(';').next().unwrap_or_default());
            } else if upload {
                call.path(TouchKind::Read, &value);
            }
        }
        if letters.is_some_and(|letters| letters.contains('O'))
            || (call.name() == "wget" && last != Some('O'))
        {
            call.path(TouchKind::Write, ".");
        }
    }
    if hosts == 0 {
        call.act.touch(TouchKind::Network, HOLE.to_string());
    }
}

/// Whether it is a whole host name or address instead of a word.
fn is_named(host: &str) -> bool {
    is_static(host) && host.contains('.') && host == host_of(host)
}

/// Database clients: the server comes from options or an address, otherwise from the environment.
pub(super) fn database(call: &mut Call<'_, '_>) {
    let args = call.args();
    call.act.near = true;
    let name = call.name().to_owned();
    let mut hosts = 0;
    let mut reach = |call: &mut Call<'_, '_>, host: &str| {
        // A path is a socket.
        if !host.starts_with('/') {
            call.act.touch(TouchKind::Network, host_of(host));
            hosts += 1;
        }
    };
    for (n, arg) in args.iter().enumerate() {
        let next = args.get(n + 1).map_or("", String::as_str);
        match arg.as_str() {
            "-h" | "--host" => reach(call, next),
            _ => match arg.strip_prefix("--host=").or_else(|| arg.strip_prefix("-h")) {
                Some(host) if !host.is_empty() && !host.starts_with("elp") => reach(call, host),
                _ if arg.contains("://") => {
                    for host in host_in_list(arg) {
                        reach(call, &host);
                    }
                }
                _ => {
                    let words = arg.split([' ', ';']);
                    let hosts = words.filter_map(|word| {
                        word.strip_prefix("host=").or_else(|| word.strip_prefix("hostaddr="))
                    });
                    hosts.for_each(|host| reach(call, host));
                }
            },
        }
        let file = match arg.as_str() {
            "-f" | "--file" | "-o" | "--output" | "-L" | "--log-file" => Some(next),
            _ => ["--file=", "--output=", "--log-file="].iter().find_map(|o| arg.strip_prefix(o)),
        };
        if let Some(file) = file.filter(|file| !file.is_empty() && *file != "-") {
            let reads = name == "psql" && (arg == "-f" || arg.starts_with("--file"));
            call.path(if reads { TouchKind::Read } else { TouchKind::Write }, file);
        }
    }
    if hosts == 0 {
        call.act.touch(TouchKind::Network, HOLE.to_string());
    }
    // `\\!`, `\\copy` and `system` run programs and read files.
    let more = |arg: &String| arg.contains('\\') || arg.contains("system") || arg.contains("eval");
    if args.iter().any(more) {
        call.act.touch(TouchKind::Code, shown(&args.join(" ")));
    }
}

/// The hosts of an address that may name several: `mongodb://a:1,b:2/db`.
fn host_in_list(address: &str) -> Vec<String> {
    let Some((scheme, rest)) = address.split_once("://") else { return Vec::new() };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let hosts = authority.rsplit('@').next().unwrap_or_default();
    hosts.split(',').map(|host| format!("{scheme}://{host}")).collect()
}

/// `ssh host command`, `scp`, `rsync`: the other machine, and the command that runs there.
pub(super) fn ssh(call: &mut Call<'_, '_>) {
    let args = call.args();
    let name = call.name().to_owned();
    match name.as_str() {
        "ssh" | "mosh" => {
            call.act.touch(TouchKind::Network, HOLE.to_string());
            // There are many options with a value, and some run programs here.
            if args.iter().any(|arg| {
                arg.starts_with("-o")
                    || arg.starts_with("-F")
                    || arg.starts_with("-E")
                    || arg.starts_with("-I")
            }) {
                call.unknown("an option that may run a program");
            }
            let mut n = 0;
            while let Some(arg) = args.get(n).filter(|arg| is_option(arg)) {
                let valued = matches!(
                    arg.as_str(),
                    "-p" | "-i"
                        | "-l"
                        | "-L"
                        | "-R"
                        | "-D"
                        | "-J"
                        | "-o"
                        | "-F"
                        | "-c"
                        | "-m"
                        | "-b"
                        | "-e"
                        | "-W"
                        | "-w"
                        | "-S"
                        | "-Q"
                        | "-B"
                        | "-E"
                        | "-I"
                        | "-O"
                        | "-P"
                );
                n += if valued { 2 } else { 1 };
            }
            if let Some(host) = args.get(n) {
                call.act.touches.retain(|touch| touch.0 != TouchKind::Network);
                call.act.touch(TouchKind::Network, host_of(host));
            }
            if let Some(text) = args.get(n + 1..).filter(|rest| !rest.is_empty()) {
                call.text(&text.join(" "));
            }
        }
        _ => {
            if name == "rsync" && has_option(&args, "e", &["--rsh", "--rsync-path", "--files-from"])
                || name != "rsync" && has_option(&args, "oSFi", &[])
            {
                call.unknown("an option that may run a program");
                for (n, arg) in args.iter().enumerate() {
                    if arg == "-e" || arg == "--rsh" {
                        let text = args.get(n + 1).cloned().unwrap_or_default();
                        call.text(&text);
                    } else if let Some(text) = arg.strip_prefix("--rsh=") {
                        call.text(text);
                    }
                }
            }
            if call.any_open() {
                call.unknown("an argument that may be an option is known only at run time");
            }
            call.wildcard_option();
            if name == "rsync"
                && has_option(&args, "", &["--delete", "--delete-after", "--remove-source-files"])
            {
                let to = args.last().cloned().unwrap_or_default();
                call.path(TouchKind::Delete, &to);
            }
            let named: Vec<String> = args.iter().filter(|arg| !is_option(arg)).cloned().collect();
            for (n, arg) in named.iter().enumerate() {
                match arg.split_once(':') {
                    Some((host, _)) if !host.contains('/') => {
                        call.act.touch(TouchKind::Network, host_of(host))
                    }
                    _ if n + 1 == named.len() => call.path(TouchKind::Write, arg),
                    _ => call.path(TouchKind::Read, arg),
                }
            }
            if name != "rsync" {
                call.act.touch(TouchKind::Network, HOLE.to_string());
            }
        }
    }
}

pub(super) fn other(call: &mut Call<'_, '_>) {
    let args = call.args();
    if call.name() == "openssl" {
        let harmless = matches!(
            args.first().map(String::as_str),
            Some("version" | "dgst" | "rand" | "sha256" | "md5")
        );
        // Its long options have one dash.
        let more = args.iter().any(|arg| {
            let name = arg.trim_start_matches('-').split('=').next().unwrap_or_default();
            is_option(arg)
                && matches!(
                    name,
                    "engine"
                        | "engine_impl"
                        | "provider"
                        | "provider-path"
                        | "propquery"
                        | "out"
                        | "config"
                        | "writerand"
                        | "rand"
                )
        });
        if harmless && !more {
            return call.read_paths(&args, 1);
        }
        if !matches!(
            args.first().map(String::as_str),
            Some("s_client" | "s_server" | "ocsp" | "s_time")
        ) {
            return call.unknown("a command of `openssl` that may load code or write files");
        }
    }
    if matches!(call.name(), "nc" | "netcat") && has_option(&args, "ec", &["--exec", "--sh-exec"]) {
        call.unknown("it hands a program to another machine");
    }
    let mut hosts = 0;
    for arg in args.iter().filter(|arg| !is_option(arg)) {
        let host = host_of(arg);
        if is_static(&host) && (host.contains('.') || host == "localhost") {
            call.act.touch(TouchKind::Network, host);
            hosts += 1;
        }
    }
    // A tunnel leaves the machine in every case.
    let tunnel = matches!(call.name(), "ngrok" | "cloudflared" | "chisel");
    if hosts == 0 || tunnel {
        call.act.near = matches!(call.name(), "nc" | "netcat" | "wscat" | "websocat");
        call.act.touch(TouchKind::Network, HOLE.to_string());
    }
    // Files may be sent as well as names.
    for arg in &args {
        let value = value_of(arg);
        if value.starts_with(['/', HOME, '@']) {
            call.path(TouchKind::Read, value.trim_start_matches('@'));
        }
    }
}

/// `ip addr`, `hostname`: queries are harmless, changes are not.
pub(super) fn interface(call: &mut Call<'_, '_>) {
    let args = call.args();
    let words: Vec<&str> =
        args.iter().map(String::as_str).filter(|arg| !arg.starts_with('-')).collect();
    let asks = match call.name() {
        "hostname" => words.is_empty() && !has_option(&args, "Fb", &["--file", "--boot"]),
        "ip" => {
            matches!(
                words.as_slice(),
                ["a" | "addr" | "address" | "r" | "route" | "link" | "l" | "neigh"]
                    | [_, "show" | "list" | "ls", ..]
            ) && words.first().is_none_or(|word| *word != "netns")
                && !has_option(&args, "b", &["-batch", "-netns"])
        }
        _ => words.is_empty(),
    };
    if !asks {
        let name = call.name().to_owned();
        call.act.touch(TouchKind::Privilege, name);
    }
}

/// A process that can talk to the container engine is root on this machine.
pub(super) fn container(call: &mut Call<'_, '_>) {
    let args = call.args();
    let name = call.name().to_owned();
    call.act.touch(TouchKind::Write, "/var/run/docker.sock");
    let shows = matches!(
        args.first().map(String::as_str),
        Some("ps" | "images" | "version" | "info" | "logs" | "inspect" | "stats")
    );
    if !shows {
        call.act.touch(TouchKind::Privilege, name);
    }
    // The inner command is shown if it is plain.
    let command = args.iter().position(|arg| matches!(arg.as_str(), "sh" | "bash"));
    if let Some(at) = command {
        call.inner(&args[at..]);
    }
}
