//! A place in the network that a reward function declares.

use std::net::IpAddr;

/// Where a cloud tells its machines who they are, credentials included.
const METADATA: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V6(std::net::Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// A network, of one address or more, and a port where one is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    /// Its first address.
    address: IpAddr,
    prefix: u8,
    /// A TCP port; unset: every port.
    pub(crate) port: Option<u16>,
}

impl Destination {
    /// Reads `192.0.2.7`, `192.0.2.0/24`, `2001:db8::7`, `2001:db8::/32`, each with `:port` where one is meant,
    /// which an IPv6 address takes in brackets: `[2001:db8::/32]:443`. `None` for anything else, such as a name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (network, port) = match (text.strip_prefix('['), text.matches(':').count()) {
            (Some(rest), _) => {
                let (network, port) = rest.split_once(']')?;
                (network, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
            }
            (None, 1) => text.split_once(':').map(|(network, port)| (network, Some(port)))?,
            (None, _) => (text, None),
        };
        let port = match port {
            Some(port) => Some(port.parse::<u16>().ok().filter(|port| *port > 0)?),
            None => None,
        };
        let (address, prefix) =
            network.split_once('/').map_or((network, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().ok()?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(prefix) => prefix.parse().ok().filter(|prefix| *prefix <= longest)?,
            None => longest,
        };
        Some(Self { address: masked(address, prefix), prefix, port })
    }

    /// The network as policies write it: `192.0.2.0/24`.
    #[cfg(any(feature = "kubernetes", test))]
    pub(crate) fn cidr(&self) -> String {
        format!("{}/{}", self.address, self.prefix)
    }

    /// What of it nobody may reach.
    #[cfg(any(feature = "kubernetes", test))]
    pub(crate) fn exceptions(&self) -> Vec<String> {
        let whole = |address: &IpAddr| format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 });
        METADATA.iter().filter(|address| self.holds(address)).map(whole).collect()
    }

    /// Whether it is a cloud's metadata address and nothing else.
    pub(crate) fn is_metadata(&self) -> bool {
        METADATA.contains(&self.address) && self.prefix == if self.address.is_ipv4() { 32 } else { 128 }
    }

    #[cfg(any(feature = "kubernetes", test))]
    fn holds(&self, address: &IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4() && masked(*address, self.prefix) == self.address
    }
}

/// The first address of the network of `address`.
fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    let prefix = u32::from(prefix);
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
            IpAddr::V6((address.to_bits() & mask).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_read_with_its_port() {
        for (text, cidr, port) in [
            ("192.0.2.7", "192.0.2.7/32", None),
            ("192.0.2.7:443", "192.0.2.7/32", Some(443)),
            ("192.0.2.7/24:443", "192.0.2.0/24", Some(443)),
            ("0.0.0.0/0", "0.0.0.0/0", None),
            ("2001:db8::7", "2001:db8::7/128", None),
            ("2001:db8:1::/32", "2001:db8::/32", None),
            ("[2001:db8::/32]:443", "2001:db8::/32", Some(443)),
            ("::/0", "::/0", None),
        ] {
            let read = Destination::parse(text).unwrap();
            assert_eq!((read.cidr().as_str(), read.port), (cidr, port), "{text}");
        }
        for bad in
            ["", "judge.example.org", "judge.example.org:443", "192.0.2.7/33", "192.0.2.7:0", "192.0.2.7:x", "[::1"]
        {
            assert_eq!(Destination::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_metadata_address_is_never_in_it() {
        let of = |text: &str| Destination::parse(text).unwrap();
        assert_eq!(of("0.0.0.0/0:443").exceptions(), ["169.254.169.254/32"]);
        assert_eq!(of("169.254.0.0/16").exceptions(), ["169.254.169.254/32"]);
        assert_eq!(of("::/0").exceptions(), ["fd00:ec2::254/128"]);
        assert!(of("192.0.2.0/24").exceptions().is_empty());
        assert!(of("169.254.169.254:80").is_metadata() && of("fd00:ec2::254").is_metadata());
        assert!(!of("169.254.169.0/24").is_metadata());
    }
}
