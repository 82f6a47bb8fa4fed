//! What ranks need to find each other: where the rendezvous is, and the secret to enter it.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use crate::{Error, Secret, Server};

/// Where the rendezvous is, and the secret to enter it, as one line of text that rank 0 hands to
/// the others: `oxccl1:HOST:PORT:SECRET`, an IPv6 address in brackets, the secret in 64 hex digits.
///
/// With `oxccl run` the command makes it; under torchrun, mpirun and srun every rank derives the
/// same one from its [`Environment`](crate::Environment), and rank 0 serves it
/// ([`UniqueId::serve`]). Whoever has the text can join: hand it on as a password. `Debug` does not
/// show the secret, `Display` does.
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId {
    host: String,
    port: u16,
    secret: Secret,
    /// How many ports the server may be at, from `port` on.
    ports: u16,
}

/// How many ports are tried where nobody has chosen one.
const TRIED: u16 = 16;

const PREFIX: &str = "oxccl1";

impl UniqueId {
    /// Starts a server on the loopback address and makes an id for it: for ranks on this machine.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn create() -> Result<(UniqueId, Server), Error> {
        Self::create_on("127.0.0.1:0")
    }

    /// Starts a server on `host:port` (port 0: any free one) and makes an id for it. The host is
    /// the one under which the other ranks reach this machine.
    ///
    /// # Errors
    /// [`Error::Address`] if the address is not one of this machine, or its port is taken.
    pub fn create_on(address: &str) -> Result<(UniqueId, Server), Error> {
        let refuse = |detail: &str| Error::Address {
            address: address.to_owned(),
            detail: detail.to_owned(),
        };
        let (host, port) = parse_address(address).map_err(|detail| refuse(&detail))?;
        if host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified()) {
            return Err(refuse("ranks cannot connect to it: name one of this machine's addresses"));
        }
        let secret = Secret::random()?;
        let server = listen(&host, port, &secret, false)?;
        let port = server.address().port();
        Ok((UniqueId::new(host, port, secret), server))
    }

    /// Puts an id together. Its server is started by [`serve`](Self::serve).
    pub fn new(host: impl Into<String>, port: u16, secret: Secret) -> UniqueId {
        UniqueId { host: host.into(), port, secret, ports: 1 }
    }

    /// The same, whose port nobody has chosen, so that another process may have it: the server is
    /// at the first of the next few that is free, and ranks look for it there.
    #[must_use]
    pub(crate) fn at_first_free(self) -> UniqueId {
        UniqueId { ports: TRIED.min(u16::MAX - self.port).max(1), ..self }
    }

    /// Where the server may be, in the order in which ports are tried.
    pub(crate) fn places(&self) -> Vec<UniqueId> {
        let place = |port| UniqueId::new(self.host.clone(), port, self.secret.clone());
        (self.port..=self.port + (self.ports - 1)).map(place).collect()
    }

    /// The id of ranks that were told where to meet, `host:port`, and perhaps a secret, any bytes.
    /// Without one the secret follows from the address, which keeps jobs apart, but not strangers
    /// who know it.
    ///
    /// # Errors
    /// [`Error::Address`] if it is not one that ranks can agree on.
    pub fn meeting(address: &str, secret: Option<&[u8]>) -> Result<UniqueId, Error> {
        let refuse = |detail| Error::Address { address: address.to_owned(), detail };
        let (host, port) = parse_meeting(address).map_err(refuse)?;
        let secret = secret.map_or_else(|| Secret::of_job(address), Secret::given);
        Ok(UniqueId::new(host, port, secret))
    }

    /// Starts the server that this id names, in this process: what rank 0 does when a launcher has
    /// told the ranks where to meet. If the host's address is not one of this machine's (a
    /// Kubernetes service in front of it, say), or its name stands for a loopback address here (as
    /// that of the machine itself often does), it listens on all of them.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn serve(&self) -> Result<Server, Error> {
        let mut last = listen(&self.host, self.port, &self.secret, true);
        for place in self.places().into_iter().skip(1) {
            let Err(Error::PortTaken { address }) = &last else { break };
            tracing::warn!(taken = address, next = place.port, "the rendezvous is at another port");
            last = listen(&place.host, place.port, &place.secret, true);
        }
        last
    }

    /// The name or address of the machine with the server.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The server's port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether only this machine can reach the server.
    pub fn is_on_loopback(&self) -> bool {
        let is_loopback = |ip: IpAddr| ip.to_canonical().is_loopback();
        self.host == "localhost" || self.host.parse().is_ok_and(is_loopback)
    }

    /// The secret of this job.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Host and port as one text.
    pub fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

fn listen(host: &str, port: u16, secret: &Secret, anywhere: bool) -> Result<Server, Error> {
    let refuse = |error: io::Error| Error::Address {
        address: format!("{host}:{port}"),
        detail: error.to_string(),
    };
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(refuse)?.collect();
    let everywhere = |first: &SocketAddr| {
        let all = match first {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
        };
        tracing::info!(host, "no address by which others reach this machine, listening on all");
        Server::start(all, secret.clone())
    };
    let is_name = host != "localhost" && host.parse::<IpAddr>().is_err();
    if let Some(first) = addresses.first().filter(|_| anywhere && is_name)
        && addresses.iter().all(|address| address.ip().is_loopback())
    {
        return everywhere(first);
    }
    let mut result = Err(refuse(io::Error::other("the host has no address")));
    for &address in &addresses {
        result = Server::start(address, secret.clone());
        if result.is_ok() {
            return result;
        }
    }
    let local = |address: &SocketAddr| std::net::UdpSocket::bind((address.ip(), 0)).is_ok();
    match addresses.first() {
        Some(first) if anywhere && !addresses.iter().any(local) => everywhere(first),
        _ => result,
    }
}

/// Takes apart the address of a meeting, whose port must be known beforehand.
pub(crate) fn parse_meeting(text: &str) -> Result<(String, u16), String> {
    match parse_address(text)? {
        (_, 0) => Err("port 0 is none that ranks can agree on".to_owned()),
        meeting => Ok(meeting),
    }
}

/// Takes `host:port` apart, or says what is wrong with it.
pub(crate) fn parse_address(text: &str) -> Result<(String, u16), String> {
    let (host, port) = text.rsplit_once(':').ok_or("it must be host:port")?;
    let port = port.parse().map_err(|_| format!("`{port}` is no port number"))?;
    let host = match host.strip_prefix('[').map(|rest| rest.strip_suffix(']')) {
        Some(Some(v6)) if v6.parse::<Ipv6Addr>().is_ok() => v6,
        Some(_) => return Err(format!("`{host}` is no IPv6 address in brackets")),
        None if host.contains(':') => return Err("put an IPv6 address in brackets".to_owned()),
        None => host,
    };
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err("the host is missing".to_owned());
    }
    Ok((host.to_owned(), port))
}

/// What is wrong with the text of a unique id. It does not repeat the text, which has the secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UniqueIdError {
    /// It does not start as a unique id of this version does.
    #[error("a unique id starts with `{PREFIX}:`")]
    Prefix,
    /// The address is not `host:port`.
    #[error("the address in the unique id is wrong: {detail}")]
    Address {
        /// What is wrong with it.
        detail: String,
    },
    /// The secret is not 64 hex digits.
    #[error("the secret in the unique id must be {expected} hex digits, this has {len} characters{}",
        if *len == *expected { " and not all are hex digits" } else { "" })]
    Secret {
        /// How many characters there are.
        len: usize,
        /// How many hex digits there must be.
        expected: usize,
    },
}

impl FromStr for UniqueId {
    type Err = UniqueIdError;

    fn from_str(text: &str) -> Result<UniqueId, UniqueIdError> {
        let rest = text.trim().strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix(':'));
        let rest = rest.ok_or(UniqueIdError::Prefix)?;
        let whole = || "it must be host:port:secret".to_owned();
        let (address, secret) =
            rest.rsplit_once(':').ok_or_else(|| UniqueIdError::Address { detail: whole() })?;
        let (host, port) =
            parse_address(address).map_err(|detail| UniqueIdError::Address { detail })?;
        let secret = from_hex(secret).ok_or_else(|| UniqueIdError::Secret {
            len: secret.chars().count(),
            expected: 2 * Secret::LEN_BYTES,
        })?;
        Ok(UniqueId::new(host, port, Secret::from_bytes(secret)))
    }
}

fn from_hex(text: &str) -> Option<[u8; Secret::LEN_BYTES]> {
    let mut bytes = [0; Secret::LEN_BYTES];
    if text.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = (digit(digits[0])? << 4 | digit(digits[1])?) as u8;
    }
    Some(bytes)
}

impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}:{}:", self.address())?;
        self.secret.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({})", self.address())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_goes_there_and_back() {
        for host in ["127.0.0.1", "node-3.cluster", "::1"] {
            let id = UniqueId::new(host, 43521, Secret::from_bytes([0xa5; 32]));
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        let id = UniqueId::new("::1", 7, Secret::from_bytes([1; 32]));
        assert!(id.to_string().starts_with("oxccl1:[::1]:7:0101"));
        assert_eq!(format!("{id:?}"), "UniqueId([::1]:7)", "no secret");
    }

    #[test]
    fn errors_name_the_part() {
        let parse = |text: &str| text.parse::<UniqueId>().unwrap_err();
        let secret = "ab".repeat(32);
        assert_eq!(parse("oxccl2:h:1:00"), UniqueIdError::Prefix);
        assert_eq!(parse(""), UniqueIdError::Prefix);
        for (address, says) in [
            ("host:99999", "`99999` is no port"),
            ("host:", "`` is no port"),
            (":1", "host is missing"),
            ("host", "host:port"),
            ("::1:5", "brackets"),
            ("[::x]:5", "IPv6"),
        ] {
            let error = parse(&format!("oxccl1:{address}:{secret}"));
            assert!(matches!(error, UniqueIdError::Address { .. }), "{address}: {error}");
            assert!(error.to_string().contains(says), "{address}: {error}");
        }
        for (text, len) in [("abc", 3), (&"xy".repeat(32), 64), (&"é".repeat(32), 32)] {
            let error = parse(&format!("oxccl1:host:1:{text}"));
            assert_eq!(error, UniqueIdError::Secret { len, expected: 64 });
            assert!(!error.to_string().contains(text), "shows the secret");
        }
    }

    #[test]
    fn an_id_cannot_name_every_address() {
        for address in ["0.0.0.0:0", "[::]:0", "nonsense"] {
            let error = UniqueId::create_on(address).unwrap_err();
            assert!(matches!(error, Error::Address { .. }), "{error}");
        }
    }

    #[test]
    fn those_who_meet_at_an_address_have_one_id() {
        let id = |secret: Option<&[u8]>| UniqueId::meeting("node1:777", secret).unwrap();
        assert_eq!((id(None).host(), id(None).port()), ("node1", 777));
        assert_eq!(id(None), id(None));
        assert_ne!(id(None), id(Some(b"s")));
        assert_ne!(id(Some(b"\xff")), id(Some(b"\xfe")));
        for address in ["node1", "node1:0", "::1:5"] {
            assert!(matches!(UniqueId::meeting(address, None), Err(Error::Address { .. })));
        }
    }

    #[test]
    fn a_name_may_be_reached_from_anywhere() {
        let is_on_loopback =
            |host| UniqueId::new(host, 1, Secret::from_bytes([1; 32])).is_on_loopback();
        let here = ["localhost", "127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1"];
        assert!(here.into_iter().all(is_on_loopback));
        assert!(!["node0", "10.0.0.1", "::", "0.0.0.0"].into_iter().any(is_on_loopback));
    }

    #[test]
    fn a_taken_port_is_an_error() {
        let (id, _server) = UniqueId::create().unwrap();
        let again = UniqueId::create_on(&id.address()).unwrap_err();
        assert!(matches!(again, Error::PortTaken { .. }), "{again}");
        assert!(id.serve().is_err(), "not silently on all addresses");
    }
}
