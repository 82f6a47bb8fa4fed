//! Configurations: `ncclConfig_t` of every size since 2.14, and what the environment says.

use crate::abi::{MAGIC, UNDEFINED};
use crate::address;
use crate::answer::{Answer, Failure};
use oxccl::{CallOptions, Config, Device};
use std::ffi::{CStr, OsString, c_char, c_int};

/// `ncclConfig_t` as 2.14 has it, and what is read of later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Raw {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
    comm_name: *const c_char,
}

impl Raw {
    const DEFAULT: Raw = Raw {
        size: size_of::<Raw>(),
        magic: MAGIC,
        version: 0,
        blocking: UNDEFINED,
        cga_cluster_size: UNDEFINED,
        min_ctas: UNDEFINED,
        max_ctas: UNDEFINED,
        net_name: std::ptr::null(),
        split_share: UNDEFINED,
        traffic_class: UNDEFINED,
        comm_name: std::ptr::null(),
    };

    /// The smallest that NCCL has had: 2.14's.
    const SMALLEST: usize = 24;
}

/// What a caller has asked of a communicator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Functions return before they are done; `ncclCommGetAsyncError` tells.
    pub(crate) is_nonblocking: bool,
    /// Most channels.
    max_channels: Option<usize>,
}

/// Reads a configuration, never past its size. Fields of which oxccl has nothing (CGA, CTA
/// policies, networks, NVLS) are hints, and change nothing.
///
/// # Safety
/// It is null, or as long as its first field says.
pub(crate) unsafe fn read(config: *const u8) -> Answer<Asked> {
    if config.is_null() {
        return Ok(Asked::default());
    }
    // SAFETY: by this function's contract; no configuration is shorter than its first field.
    let size = unsafe { config.cast::<usize>().read_unaligned() };
    if size < Raw::SMALLEST {
        return Err(Failure::argument(format!("config.size is {size}, which no NCCL has had")));
    }
    let mut raw = Raw::DEFAULT;
    // SAFETY: both have so many bytes, and any bytes are a value.
    unsafe {
        let to = (&raw mut raw).cast::<u8>();
        to.copy_from_nonoverlapping(config, size.min(size_of::<Raw>()));
    }
    if raw.magic != MAGIC {
        return Err(Failure::argument(
            "config.magic is wrong: it was not made by NCCL_CONFIG_INITIALIZER",
        ));
    }
    let is_nonblocking = match raw.blocking {
        UNDEFINED | 1 => false,
        0 => true,
        other => return Err(Failure::argument(format!("config.blocking is {other}, not 0 or 1"))),
    };
    // Fields that a version did not have may hold anything, whatever the size.
    let has_ctas = size >= 40 && raw.version >= 2_17_00;
    let ctas = |name: &str, value: c_int| match value {
        UNDEFINED => Ok(None),
        _ if !has_ctas => Ok(None),
        1.. => Ok(Some(value as usize)),
        _ => Err(Failure::argument(format!("config.{name} is {value}"))),
    };
    let (least, most) = (ctas("minCTAs", raw.min_ctas)?, ctas("maxCTAs", raw.max_ctas)?);
    if let (Some(least), Some(most)) = (least, most)
        && least > most
    {
        return Err(Failure::argument(format!("config.minCTAs {least} is above maxCTAs {most}")));
    }
    Ok(Asked { is_nonblocking, max_channels: most })
}

/// An option of a vendor's in the list of an `ncclCollConfig_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Extension {
    next: *const Extension,
    vendor: c_int,
    option: c_int,
    value: Value,
}

#[derive(Clone, Copy)]
#[repr(C)]
union Value {
    number: c_int,
    text: *const c_char,
}

/// The vendor of oxccl's options, "OXC", and its options (`oxccl_nccl.h`).
const VENDOR: c_int = 0x4f_58_43;
const ORDER: c_int = 1;
const ALGORITHM: c_int = 2;
const ENCODING: c_int = 3;
const CHANNELS: c_int = 4;

/// A list of extensions is not longer; one that goes round in a circle is.
const MOST_EXTENSIONS: usize = 1000;

/// Reads oxccl's options out of a list; those of other vendors are none of its business.
///
/// # Safety
/// Each entry is null or valid, and so are the texts of this vendor's options.
unsafe fn extensions(mut at: *const Extension, options: &mut CallOptions) -> Answer {
    fn set<T>(name: &str, to: &mut Option<T>, value: T) -> Answer {
        match to.replace(value) {
            None => Ok(()),
            Some(_) => Err(Failure::argument(format!("config.ext has {name} twice"))),
        }
    }

    let text = |value: Value| -> Answer<&str> {
        // SAFETY: by this function's contract.
        let text = unsafe { value.text };
        if text.is_null() {
            return Err(Failure::argument("a text in config.ext is NULL"));
        }
        // SAFETY: as above.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_str().map_err(|_| Failure::argument("a text in config.ext is not UTF-8"))
    };
    let wrong = |error: String| Failure::argument(format!("config.ext: {error}"));
    for _ in 0..MOST_EXTENSIONS {
        if at.is_null() {
            return Ok(());
        }
        // SAFETY: as above.
        let one = unsafe { at.read_unaligned() };
        at = one.next;
        if one.vendor != VENDOR {
            continue;
        }
        match one.option {
            ORDER => {
                set("the order", &mut options.order, text(one.value)?.parse().map_err(wrong)?)?;
            }
            ALGORITHM => {
                let algorithm = text(one.value)?.parse().map_err(wrong)?;
                set("the algorithm", &mut options.algorithm, algorithm)?;
            }
            ENCODING => {
                let encoding = text(one.value)?.parse().map_err(wrong)?;
                set("the encoding", &mut options.encoding, encoding)?;
            }
            CHANNELS => {
                // SAFETY: any bits are a number.
                let most = unsafe { one.value.number };
                let most = usize::try_from(most).ok().filter(|most| *most > 0);
                let most = most.ok_or_else(|| wrong("channels are not above 0".into()))?;
                set("the channels", &mut options.channels, most)?;
            }
            other => return Err(wrong(format!("oxccl has no option {other}"))),
        }
    }
    Err(wrong(format!("its list is longer than {MOST_EXTENSIONS}, or a circle")))
}

/// Reads `ncclCollConfig_t`: most channels of one call, and oxccl's own options. What chooses an
/// algorithm by NCCL's names is refused; the rest are hints.
///
/// # Safety
/// It is null, or as long as its first field says, and its list of extensions is valid.
pub(crate) unsafe fn options_of_call(config: *const u8) -> Answer<CallOptions> {
    /// As 2.32 has it.
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Raw {
        size: usize,
        magic: u32,
        version: u32,
        ext: *const Extension,
        min_ctas: c_int,
        max_ctas: c_int,
        nvls_ctas: c_int,
        cga_cluster_size: c_int,
        algorithms: *const c_char,
        force: c_int,
        cta_policy: c_int,
        tag: u64,
        completion: *const u8,
    }

    if config.is_null() {
        return Ok(CallOptions::default());
    }
    // SAFETY: by this function's contract; no configuration is shorter than its first field.
    let size = unsafe { config.cast::<usize>().read_unaligned() };
    if size < size_of::<Raw>() {
        return Err(Failure::argument(format!("config.size is {size}, which no NCCL has had")));
    }
    // SAFETY: by this function's contract it is as long.
    let raw = unsafe { config.cast::<Raw>().read_unaligned() };
    if raw.magic != MAGIC {
        return Err(Failure::argument(
            "config.magic is wrong: it was not made by NCCL_COLLCONFIG_INITIALIZER",
        ));
    }
    // SAFETY: a selection is a text, or null.
    let selects = !raw.algorithms.is_null() && unsafe { raw.algorithms.read() } != 0;
    if selects && raw.force != 0 {
        return Err(Failure::usage(
            "config.algSelection names algorithms of NCCL: an extension of the vendor 0x4f5843 names those of oxccl",
        ));
    }
    if !raw.completion.is_null() {
        return Err(Failure::usage("config.launchCompletionEvent is not supported"));
    }
    let mut options = CallOptions::default();
    // SAFETY: by this function's contract.
    unsafe { extensions(raw.ext, &mut options) }?;
    match raw.max_ctas {
        UNDEFINED => {}
        1.. => {
            let most = raw.max_ctas as usize;
            options.channels = Some(options.channels.map_or(most, |own| own.min(most)));
        }
        most => return Err(Failure::argument(format!("config.maxCTAs is {most}"))),
    }
    Ok(options)
}

/// Writes how many microseconds were predicted, if any, into an `ncclSimInfo_t`.
///
/// # Safety
/// It is null, or as long as its first field says.
pub(crate) unsafe fn write_estimate(info: *mut u8, predicted_us: Option<f64>) -> Answer {
    const MAGIC: u32 = 0x7468_5283;
    const ESTIMATE_AT: usize = 16;
    if info.is_null() {
        return Err(Failure::argument("simInfo is NULL"));
    }
    // SAFETY: by this function's contract; no version is shorter than its first two fields.
    let (size, magic) = unsafe {
        (info.cast::<usize>().read_unaligned(), info.add(8).cast::<u32>().read_unaligned())
    };
    if magic != MAGIC || size < ESTIMATE_AT + size_of::<f32>() {
        return Err(Failure::argument("simInfo was not made by NCCL_SIM_INFO_INITIALIZER"));
    }
    if let Some(us) = predicted_us {
        // SAFETY: as above.
        unsafe { info.add(ESTIMATE_AT).cast::<f32>().write_unaligned(us as f32) };
    }
    Ok(())
}

/// NCCL's variables that say what one of oxccl's does: theirs, ours, and the value in ours.
type Same = (&'static str, &'static str, fn(&str) -> Option<String>);
const SAME: [Same; 3] = [
    ("NCCL_DEBUG", "OXCCL_LOG", |value| match value.to_ascii_uppercase().as_str() {
        "WARN" => Some("warn".into()),
        "INFO" => Some("info".into()),
        "TRACE" => Some("trace".into()),
        _ => None,
    }),
    ("NCCL_MAX_NCHANNELS", "OXCCL_MAX_CHANNELS", |value| Some(value.into())),
    ("NCCL_MAX_CTAS", "OXCCL_MAX_CHANNELS", |value| Some(value.into())),
];

/// What a variable of oxccl's is: its own value, or that of NCCL's which says the same.
fn variable(name: &str) -> Option<OsString> {
    let same = || {
        let mut same = SAME.iter().filter(|(_, ours, _)| *ours == name);
        same.find_map(|(theirs, _, value)| value(&std::env::var(theirs).ok()?)).map(OsString::from)
    };
    std::env::var_os(name).or_else(same)
}

/// NCCL's variables that are set and that nothing here looks at.
pub(crate) fn unknown_variables() -> Vec<String> {
    let known = |name: &str| {
        name == "NCCL_SOCKET_IFNAME" || SAME.iter().any(|(theirs, ..)| *theirs == name)
    };
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut unknown: Vec<_> =
        names.filter(|name| name.starts_with("NCCL_") && !known(name)).collect();
    unknown.sort();
    unknown
}

/// Whether calls take host memory: `OXCCL_DEVICE=host`. Otherwise they take that of GPUs.
pub(crate) fn is_host() -> bool {
    std::env::var_os("OXCCL_DEVICE").is_some_and(|device| device == "host")
}

/// A communicator's configuration. There is no time-out unless `OXCCL_TIMEOUT` asks for one, as
/// NCCL has none.
pub(crate) fn config(device: Device, asked: Asked) -> Answer<Config> {
    let name = device.to_string();
    let lookup = |setting: &str| match setting {
        "OXCCL_DEVICE" => Some(OsString::from(&name)),
        "OXCCL_TIMEOUT" => variable(setting).or_else(|| Some("none".into())),
        _ => variable(setting),
    };
    let mut config = Config::from_lookup(lookup)?;
    if config.interface.is_none() && std::env::var_os("NCCL_SOCKET_IFNAME").is_some() {
        config.interface = Some(address::own(|name| std::env::var(name).ok())?.0);
    }
    if let Some(most) = asked.max_channels {
        config.max_channels = config.max_channels.min(most);
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Configurations at the end of a page behind which nothing may be read.
    fn read_guarded(size: usize, edit: impl FnOnce(&mut [u8])) -> Answer<Asked> {
        const PAGE: usize = 1 << 16;
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new pages, the second of which is then out of reach.
        let pages = unsafe { libc::mmap(std::ptr::null_mut(), 2 * PAGE, prot, flags, -1, 0) };
        assert_ne!(pages, libc::MAP_FAILED);
        // SAFETY: as above; what is written is within the first page.
        let asked = unsafe {
            assert_eq!(libc::mprotect(pages.byte_add(PAGE), PAGE, libc::PROT_NONE), 0);
            let at = pages.cast::<u8>().add(PAGE - size);
            let bytes = std::slice::from_raw_parts_mut(at, size);
            for undefined in bytes.chunks_exact_mut(4) {
                undefined.copy_from_slice(&UNDEFINED.to_ne_bytes());
            }
            bytes[..8].copy_from_slice(&size.to_ne_bytes());
            bytes[8..12].copy_from_slice(&MAGIC.to_ne_bytes());
            bytes[12..16].copy_from_slice(&23007u32.to_ne_bytes());
            edit(bytes);
            read(at)
        };
        // SAFETY: they were mapped above.
        unsafe { libc::munmap(pages, 2 * PAGE) };
        asked
    }

    #[test]
    fn every_size_is_read_and_nothing_behind_it() {
        for size in [24, 40, 48, 72, 80, 88, 96, 120] {
            assert_eq!(read_guarded(size, |_| ()).unwrap(), Asked::default(), "{size}");
            let asked = read_guarded(size, |bytes| bytes[16..20].fill(0)).unwrap();
            assert!(asked.is_nonblocking, "{size}");
            let few = |bytes: &mut [u8]| {
                if size >= 40 {
                    bytes[28..32].copy_from_slice(&3i32.to_ne_bytes());
                }
            };
            let most = (size >= 40).then_some(3);
            assert_eq!(read_guarded(size, few).unwrap().max_channels, most, "{size}");
        }
    }

    #[test]
    fn what_is_no_configuration_is_refused() {
        let refused = |edit: fn(&mut [u8])| read_guarded(48, edit).unwrap_err().text;
        assert!(
            refused(|bytes| bytes[..8].copy_from_slice(&8usize.to_ne_bytes())).contains("size")
        );
        assert!(refused(|bytes| bytes[8] = 0).contains("magic"));
        assert!(refused(|bytes| bytes[16..20].fill(7)).contains("blocking"));
        assert!(refused(|bytes| bytes[28..32].fill(0)).contains("maxCTAs"));
        // SAFETY: null is nothing to read.
        assert_eq!(unsafe { read(std::ptr::null()) }.unwrap(), Asked::default());
    }

    #[test]
    fn an_old_version_has_no_fields_of_later_ones() {
        let old = |bytes: &mut [u8]| {
            bytes[12..16].copy_from_slice(&21400u32.to_ne_bytes());
            bytes[28..32].fill(0);
        };
        assert_eq!(read_guarded(48, old).unwrap(), Asked::default());
    }
}
