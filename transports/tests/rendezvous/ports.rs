//! Ports that other processes have: where a launcher tells ranks only which port its own service
//! has, and so nobody has chosen theirs.

use std::ffi::OsString;
use std::io::Write;
use std::net::TcpListener;
use std::thread;

use oxccl_transports::{Environment, Error, Secret, Server, UniqueId};

use crate::{unserved, works};

/// The id of a job of torchrun's, whose own service is at the port before.
fn job(master_port: u16) -> UniqueId {
    let lookup = |name: &str| {
        let value = match name {
            "RANK" | "LOCAL_RANK" => "0".to_owned(),
            "WORLD_SIZE" | "LOCAL_WORLD_SIZE" => "2".to_owned(),
            "MASTER_ADDR" => "127.0.0.1".to_owned(),
            "MASTER_PORT" => master_port.to_string(),
            "OXCCL_SECRET" => "ports".to_owned(),
            _ => return None,
        };
        Some(OsString::from(value))
    };
    Environment::from_lookup(lookup, 1).unwrap().unique_id
}

/// Ranks meet although somebody has the first ports.
fn meet_beside(have: impl Fn(TcpListener)) {
    let master = unserved().port();
    let id = job(master);
    for port in master + 1..=master + 3 {
        have(TcpListener::bind(("127.0.0.1", port)).unwrap());
    }
    let server = id.serve().unwrap();
    assert_eq!(server.address().port(), master + 4);
    works(&id, 2);
}

#[test]
fn ranks_meet_beside_a_service_that_says_nothing() {
    meet_beside(std::mem::forget);
}

#[test]
fn ranks_meet_beside_another_service() {
    meet_beside(|listener| {
        thread::spawn(move || {
            for stream in listener.incoming() {
                let _ = stream.unwrap().write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            }
        });
    });
}

#[test]
fn ranks_meet_beside_another_job() {
    meet_beside(|listener| {
        let address = listener.local_addr().unwrap();
        drop(listener);
        let server = Server::start(address, Secret::random().unwrap()).unwrap();
        server.set_linger(std::time::Duration::ZERO);
        std::mem::forget(server);
    });
}

#[test]
fn a_wrong_secret_is_told_before_the_deadline() {
    let master = unserved().port();
    let id = job(master);
    let address = format!("127.0.0.1:{}", master + 1).parse().unwrap();
    let _server = Server::start(address, Secret::random().unwrap()).unwrap();
    let refused = crate::error(crate::join(&id, 0, 2));
    assert!(matches!(refused, Error::WrongSecret { .. }), "{refused}");
}

#[test]
fn a_port_that_was_chosen_is_not_another() {
    let id = unserved();
    let _taken = TcpListener::bind(("127.0.0.1", id.port())).unwrap();
    let refused = id.serve().unwrap_err();
    assert!(matches!(refused, Error::PortTaken { .. }), "{refused}");
    assert!(refused.to_string().ends_with("its port is taken"), "{refused}");
}
