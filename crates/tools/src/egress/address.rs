//! Classifies the address of a connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The class of an address, which decides whether it may be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// A public address on the internet.
    Public,
    /// This machine or a private network; reachable only by a rule that says `private`.
    Private(&'static str),
    /// Never reachable, whatever the rules are.
    Never(&'static str),
}

/// Services that give credentials to any local caller, at addresses that are not link-local.
const METADATA_V4: [[u8; 4]; 3] = [[100, 100, 100, 200], [168, 63, 129, 16], [192, 0, 0, 192]];
const METADATA_V6: [Ipv6Addr; 1] = [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)];

impl Address {
    pub fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => v4(ip),
            IpAddr::V6(ip) => v6(ip),
        }
    }
}

fn v4(ip: Ipv4Addr) -> Address {
    use Address::{Never, Private, Public};
    let octets = ip.octets();
    if octets == [169, 254, 169, 254] || METADATA_V4.contains(&octets) {
        return Never("a cloud metadata address");
    }
    match octets {
        [0, ..] => Never("an unspecified address"),
        [127, ..] => Private("a loopback address"),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Private("a private address"),
        [100, 64..=127, ..] => Private("a shared (carrier NAT) address"),
        [169, 254, ..] => Never("a link-local address"),
        [224..=239, ..] => Never("a multicast address"),
        [240..=255, ..] => Never("a reserved address"),
        [192, 0, 0, _] | [192, 88, 99, _] | [198, 18..=19, ..] => Never("a reserved address"),
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => {
            Never("an address for documentation")
        }
        _ => Public,
    }
}

fn v6(ip: Ipv6Addr) -> Address {
    use Address::{Never, Private, Public};
    if METADATA_V6.contains(&ip) {
        return Never("a cloud metadata address");
    }
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Never("an unspecified address"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Private("a loopback address"),
        // These are compatible, mapped and translated forms, NAT64, 6to4, Teredo, ISATAP.
        [0, 0, 0, 0, 0 | 0xffff, ..]
        | [0x64, 0xff9b, ..]
        | [0x2002, ..]
        | [0x2001, 0, ..]
        | [_, _, _, _, 0 | 0x200, 0x5efe, ..] => {
            Never("an IPv6 address that wraps an IPv4 address")
        }
        [0xfc00..=0xfdff, ..] => Private("a private (unique local) address"),
        [0xfe80..=0xfebf, ..] => Never("a link-local address"),
        [0xff00..=0xffff, ..] => Never("a multicast address"),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0x0fff, ..] => Never("an address for documentation"),
        [0x2001, 1..=0x1ff, ..] => Never("a reserved address"),
        [0x2000..=0x3fff, ..] => Public,
        _ => Never("a reserved address"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> &'static str {
        match Address::of(text.parse().unwrap()) {
            Address::Public => "public",
            Address::Private(_) => "private",
            Address::Never(_) => "never",
        }
    }

    #[test]
    fn every_special_address_range_ends_exactly_at_its_bounds() {
        for (wanted, all) in [
            (
                "public",
                "1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 \
                 128.0.0.0 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 192.0.1.0 \
                 192.0.3.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 223.255.255.255 \
                 2606:4700::1111 2001:200:: 2003:: 3ffe:: 2a00:1450::1",
            ),
            (
                "private",
                "127.0.0.1 127.255.255.255 10.0.0.0 10.255.255.255 172.16.0.0 172.31.255.255 \
                 192.168.0.0 192.168.255.255 100.64.0.0 100.127.255.255 ::1 fc00:: fdff::1",
            ),
            (
                "never",
                "0.0.0.0 0.1.2.3 169.254.169.254 169.254.0.0 169.254.255.255 100.100.100.200 \
                 168.63.129.16 192.0.0.192 192.0.0.1 192.0.2.1 192.88.99.1 198.18.0.0 \
                 198.19.255.255 198.51.100.7 203.0.113.9 224.0.0.0 239.255.255.255 240.0.0.0 \
                 255.255.255.255 :: ::ffff:127.0.0.1 ::ffff:8.8.8.8 ::8.8.8.8 ::ffff:0:8.8.8.8 \
                 64:ff9b::8.8.8.8 64:ff9b::10.0.0.1 64:ff9b:1::1 2002:7f00:1:: 2002:808:808:: \
                 2001::1 2001:10:: 2001:1ff:ffff:: 2001:db8::1 3fff:fff:: fe80::1 febf::1 fec0::1 \
                 ff02::1 100::1 5f00::1 4000::1 fd00:ec2::254 2a00::5efe:a00:1",
            ),
        ] {
            for text in all.split_whitespace() {
                assert_eq!(kind(text), wanted, "{text}");
            }
        }
    }
}
