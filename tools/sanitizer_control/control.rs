//! Runs the planted faults: `control`, `control race` or `control overrun`.

unsafe extern "C" {
    fn produce(data: *mut u64, flag: *mut u64, planted: bool);
    fn consume(data: *const u64, flag: *const u64, len: i32) -> u64;
}

fn main() {
    let fault = std::env::args().nth(1).unwrap_or_default();
    let (race, len) = (fault == "race", if fault == "overrun" { 65 } else { 64 });
    let mut data = vec![0u64; 64];
    let mut flag = 0u64;
    let (data_address, flag_address) = (data.as_mut_ptr() as usize, &raw mut flag as usize);
    let producer = std::thread::spawn(move || {
        // SAFETY: `data` and `flag` outlive this thread, which is joined below; the consumer reads
        // `data` only after it has seen `flag`.
        unsafe { produce(data_address as *mut u64, flag_address as *mut u64, race) }
    });
    // SAFETY: as above; 64 elements are valid, and reading one more is the fault asked for.
    let sum = unsafe { consume(data_address as *const u64, flag_address as *const u64, len) };
    producer.join().expect("the producer does not panic");
    assert!(len == 65 || sum == 64 * 65 / 2);
    drop(data);
}
