//! Operands and counters read from text, as they are printed: `in[0]`, `out[2]`, `scratch[1]`,
//! `from 1.ll#0`, `to 1.slots#3.1`, `1:in[0]`, `all:out[0]`, `node of 8:out[0]`, `to rail of 8#0`,
//! `from rail of 8#0`, `tokens`, `tokens of 1`, `1.slots.tail`, `1/2.slots.tail`.

use super::{Buffer, Flag, Lane, Link, Members, Operand, Rail, Source};
use std::str::FromStr;

impl FromStr for Link {
    type Err = String;

    fn from_str(text: &str) -> Result<Link, String> {
        let lanes = Lane::ALL.map(Lane::name).join(", ");
        let wrong = || {
            format!(
                "{text:?} is no link: a rank, and its list if that is not the first, and one of {lanes}, as 1.slots or 1/2.slots"
            )
        };
        let (peer, name) = text.split_once('.').ok_or_else(wrong)?;
        let lane = Lane::ALL.into_iter().find(|lane| lane.name() == name).ok_or_else(wrong)?;
        let (peer, list) = peer.split_once('/').unwrap_or((peer, "0"));
        let (peer, list) = (peer.parse().map_err(|_| wrong())?, list.parse().map_err(|_| wrong())?);
        Ok(Link { peer, list, lane })
    }
}

impl FromStr for Flag {
    type Err = String;

    fn from_str(text: &str) -> Result<Flag, String> {
        match text.rsplit_once('.') {
            Some((link, "tail")) => Ok(Flag::Tail(link.parse()?)),
            Some((link, "head")) => Ok(Flag::Head(link.parse()?)),
            _ => Err(format!("{text:?} is no counter: a link and tail or head, as 1.slots.tail")),
        }
    }
}

impl std::fmt::Display for Flag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Flag::Tail(link) => write!(f, "{link}.tail"),
            Flag::Head(link) => write!(f, "{link}.head"),
        }
    }
}

impl FromStr for Operand {
    type Err = String;

    fn from_str(text: &str) -> Result<Operand, String> {
        let wrong = || {
            format!(
                "{text:?} is no operand; there are in[CHUNK], out[CHUNK], scratch[CHUNK], PEER:in[CHUNK], PEER:out[CHUNK], \
                 all:in[CHUNK], all:out[CHUNK], node of RANKS:in[CHUNK], node of RANKS:out[CHUNK], from LINK#MESSAGE, to LINK#MESSAGE (with .SEGMENT behind from the second on), \
                 from rail of RANKS#MESSAGE, to rail of RANKS#MESSAGE, tokens, tokens of PEER"
            )
        };
        if text == "tokens" {
            return Ok(Operand::Tokens);
        }
        if let Some(peer) = text.strip_prefix("tokens of ") {
            return Ok(Operand::PeerTokens(peer.parse().map_err(|_| wrong())?));
        }
        if let Some(rest) = text.strip_prefix("from rail of ") {
            let (rail, message) = of_rail(rest).ok_or_else(wrong)?;
            return Ok(Operand::Reduced { rail, message });
        }
        if let Some(rest) = text.strip_prefix("to rail of ") {
            let (rail, message) = of_rail(rest).ok_or_else(wrong)?;
            return Ok(Operand::Contribution { rail, message });
        }
        if let Some(rest) = text.strip_prefix("from ") {
            let (link, message, segment) = slot(rest).ok_or_else(wrong)?;
            return Ok(Operand::Slot { link, message, segment });
        }
        if let Some(rest) = text.strip_prefix("to ") {
            let (link, message, segment) = slot(rest).ok_or_else(wrong)?;
            return Ok(Operand::PeerSlot { link, message, segment });
        }
        if let Some(chunk) = text.strip_prefix("scratch") {
            return Ok(Operand::Scratch(index(chunk).ok_or_else(wrong)?));
        }
        let (whose, place) = match text.split_once(':') {
            Some((whose, place)) => (Some(whose), place),
            None => (None, text),
        };
        let (buffer, chunk) = chunk(place).ok_or_else(wrong)?;
        Ok(match (whose, buffer) {
            (Some("all"), _) => Operand::Multicast { of: Members::All, buffer, chunk },
            (Some(whose), _) => match whose.strip_prefix("node of ") {
                Some(local) => {
                    let of = Members::Node(local.parse().map_err(|_| wrong())?);
                    Operand::Multicast { of, buffer, chunk }
                }
                None => {
                    Operand::Window { peer: whose.parse().map_err(|_| wrong())?, buffer, chunk }
                }
            },
            (None, Buffer::Input) => Operand::Input(chunk),
            (None, Buffer::Output) => Operand::Output(chunk),
        })
    }
}

/// A source's operand, behind `raw` where it is an unscaled contribution.
impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Source, String> {
        match text.strip_prefix("raw ") {
            Some(operand) => Ok(Source::raw(operand.parse()?)),
            None => Ok(Source::plain(text.parse()?)),
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", if self.raw { "raw " } else { "" }, self.operand)
    }
}

/// `in[CHUNK]` or `out[CHUNK]`.
fn chunk(text: &str) -> Option<(Buffer, usize)> {
    let (buffer, rest) = match text.strip_prefix("in") {
        Some(rest) => (Buffer::Input, rest),
        None => (Buffer::Output, text.strip_prefix("out")?),
    };
    Some((buffer, index(rest)?))
}

/// `[CHUNK]`.
fn index(text: &str) -> Option<usize> {
    text.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
}

/// `LINK#MESSAGE` or `LINK#MESSAGE.SEGMENT`.
fn slot(text: &str) -> Option<(Link, u32, u32)> {
    let (link, message) = text.split_once('#')?;
    let (message, segment) = match message.split_once('.') {
        Some((message, segment)) => (message, segment.parse().ok()?),
        None => (message, 0),
    };
    Some((link.parse().ok()?, message.parse().ok()?, segment))
}

/// `RANKS#MESSAGE`.
fn of_rail(text: &str) -> Option<(Rail, u32)> {
    let (local, message) = text.split_once('#')?;
    Some((Rail(local.parse().ok()?), message.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read() {
        let link = Link::new(12, Lane::Slots);
        for operand in [
            Operand::Input(3),
            Operand::Output(0),
            Operand::Slot { link, message: 2, segment: 0 },
            Operand::PeerSlot { link, message: 0, segment: 15 },
            Operand::Window { peer: 1, buffer: Buffer::Output, chunk: 7 },
            Operand::Multicast { of: Members::All, buffer: Buffer::Input, chunk: 2 },
            Operand::Multicast { of: Members::Node(8), buffer: Buffer::Output, chunk: 2 },
            Operand::Contribution { rail: Rail(8), message: 1 },
            Operand::Reduced { rail: Rail(8), message: 0 },
            Operand::Tokens,
            Operand::PeerTokens(4),
        ] {
            assert_eq!(operand.to_string().parse(), Ok(operand));
            let raw = Source::raw(operand);
            assert_eq!(raw.to_string().parse(), Ok(raw));
        }
        for flag in [Flag::Tail(link), Flag::Head(link)] {
            assert_eq!(flag.to_string().parse(), Ok(flag));
        }
    }

    #[test]
    fn anything_else_is_an_error_that_says_what_there_is() {
        for text in [
            "",
            "in",
            "in[",
            "in[x]",
            "scratch",
            "1:scratch[0]",
            "up[0]",
            "from 1#0",
            "to 1.ll",
            "from 1.ll#0.x",
            "1:",
            "node of :in[0]",
            "to rail of 8",
            "from rail of #0",
            "in[0]]",
        ] {
            let error = text.parse::<Operand>().unwrap_err();
            assert!(error.contains("there are in[CHUNK]"), "{error}");
        }
        assert!("1.slots".parse::<Flag>().unwrap_err().contains("as 1.slots.tail"));
        assert!(
            "1.fast.tail".parse::<Flag>().unwrap_err().contains("one of ll, slots, sync, ll128")
        );
    }
}
