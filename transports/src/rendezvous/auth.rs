//! The secret that the ranks of a job share, and how they prove that they hold it.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use crate::Error;
use crate::seal::{Seal, Seals};

/// What deriving a secret from what somebody has thought of costs: 2^14 blocks of 8 x 128 bytes,
/// once (scrypt's N, r and p).
const SCRYPT_COST: (u8, u32, u32) = (14, 8, 1);

/// The secret that the ranks of a job share. It is never shown: not by `Debug`, not in errors.
#[derive(Clone)]
pub struct Secret([u8; Secret::LEN_BYTES]);

/// A value used once, so that no proof can be given twice.
pub(crate) type Nonce = [u8; 32];

/// What shows that its sender holds the secret.
pub(crate) type Proof = [u8; 32];

impl Secret {
    /// The length of a secret.
    pub const LEN_BYTES: usize = 32;

    /// Makes a new one from the system's random numbers.
    ///
    /// # Errors
    /// [`Error::Io`] if the system has none.
    pub fn random() -> Result<Secret, Error> {
        Ok(Secret(random_bytes()?))
    }

    /// A secret for ranks that are threads of one process. It is random unless the system has no
    /// random numbers; then it only keeps this process's ranks from mixing with others'.
    pub(crate) fn of_process() -> Secret {
        let number = || Secret::derive("process", &std::process::id().to_le_bytes());
        Secret::random().unwrap_or_else(|_| number())
    }

    /// Takes these bytes for the secret.
    pub fn from_bytes(bytes: [u8; Secret::LEN_BYTES]) -> Secret {
        Secret(bytes)
    }

    /// The secret of a job whose user gave one, any bytes. What people choose can be guessed, so
    /// that each guess is made to cost what this does: 16 MiB of memory and some 50 ms of a core.
    /// It is derived once, not for each connection.
    pub(crate) fn given(bytes: &[u8]) -> Secret {
        let (log_n, r, p) = SCRYPT_COST;
        let mut key = [0; Secret::LEN_BYTES];
        let params = scrypt::Params::new(log_n, r, p, key.len());
        let derived = params.map(|params| scrypt::scrypt(bytes, b"oxccl", &params, &mut key));
        // Only parameters and lengths can be wrong, and these are not.
        let Ok(Ok(())) = derived else { unreachable!() };
        Secret(key)
    }

    /// The secret of a job that was given none: it follows from what identifies the job, which
    /// keeps jobs from mixing, but nobody out who knows that.
    pub(crate) fn of_job(job: &str) -> Secret {
        Secret::derive("job", job.as_bytes())
    }

    /// As hard to guess as the bytes, so not for what somebody has thought of. What they are goes
    /// in, too.
    fn derive(what: &str, bytes: &[u8]) -> Secret {
        let mut hash = Sha256::new();
        hash.update(b"oxccl secret ");
        hash.update(what);
        hash.update(b" ");
        hash.update(bytes);
        Secret(hash.finalize().into())
    }

    /// The bytes, to hand them to another rank.
    pub fn as_bytes(&self) -> &[u8; Secret::LEN_BYTES] {
        &self.0
    }

    /// Proves the secret for these parts. The label says who proves what, so that no proof can be
    /// used in another place.
    pub(crate) fn prove(&self, label: &str, parts: &[&[u8]]) -> Proof {
        self.mac(label, parts).finalize().into_bytes().into()
    }

    /// Whether a proof is right, in constant time.
    pub(crate) fn verify(&self, label: &str, parts: &[&[u8]], proof: &Proof) -> bool {
        self.mac(label, parts).verify_slice(proof).is_ok()
    }

    fn mac(&self, label: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
        // An HMAC key may have any length, so this cannot fail.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { unreachable!() };
        for part in [label.as_bytes()].iter().chain(parts) {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// What seals a control connection of these nonces, the client's and the server's, at the server's
/// end.
pub(super) fn seals_of_server(secret: &Secret, [client, server]: &[Nonce; 2]) -> Seals {
    let seal = |label| Seal::new(secret, label, &[client, server]);
    Seals { sending: seal("to client"), receiving: seal("to server") }
}

/// The same at the client's end.
pub(super) fn seals_of_client(secret: &Secret, nonces: &[Nonce; 2]) -> Seals {
    let Seals { sending, receiving } = seals_of_server(secret, nonces);
    Seals { sending: receiving, receiving: sending }
}

/// Bytes that nobody guesses.
///
/// # Errors
/// Where the system has none.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    let filled = getrandom::fill(&mut bytes);
    filled.map_err(|error| Error::io("reading random numbers")(error.into()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_secret_label_and_parts_only() {
        let secret = Secret::from_bytes([7; 32]);
        let proof = secret.prove("server", &[b"ab", b"c"]);
        assert!(secret.verify("server", &[b"ab", b"c"], &proof));
        assert!(!secret.verify("client", &[b"ab", b"c"], &proof));
        assert!(!secret.verify("server", &[b"a", b"bc"], &proof));
        assert!(!Secret::from_bytes([8; 32]).verify("server", &[b"ab", b"c"], &proof));
        let mut wrong = proof;
        wrong[31] ^= 1;
        assert!(!secret.verify("server", &[b"ab", b"c"], &wrong));
    }

    #[test]
    fn hmac_sha256_is_the_standards() {
        // Recomputed here from SHA-256 alone, by the definition in RFC 2104.
        let key = [0x5a; 32];
        let mut message = Vec::new();
        for part in [&b"label"[..], b"part"] {
            message.extend((part.len() as u64).to_le_bytes());
            message.extend(part);
        }
        let pad = |byte: u8| -> Vec<u8> {
            (0..64).map(|i| key.get(i).copied().unwrap_or(0) ^ byte).collect()
        };
        let inner = Sha256::digest([pad(0x36), message].concat());
        let outer = Sha256::digest([pad(0x5c), inner.to_vec()].concat());
        assert_eq!(Secret::from_bytes(key).prove("label", &[b"part"]), *outer);
    }

    #[test]
    fn secrets_are_random_and_hidden() {
        let (a, b) = (Secret::random().unwrap(), Secret::random().unwrap());
        assert_ne!(a, b);
        assert_eq!(format!("{a:?}"), "Secret(hidden)");
        assert_eq!(Secret::of_job("1"), Secret::of_job("1"));
        assert_ne!(Secret::of_job("1"), Secret::of_job("2"));
        assert_ne!(Secret::of_job("1"), Secret::given(b"1"));
    }
}
