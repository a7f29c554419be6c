//! What the proxy does to a connection, over a server that answers every line with the same line.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{net::SocketAddr, time::Duration};

use spill_conformance::{Proxy, Weather};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (read, mut write) = stream.into_split();
                let mut lines = BufReader::new(read).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    write.write_all(format!("{line}\n").as_bytes()).await.unwrap_or_default();
                }
            });
        }
    });
    address
}

/// Sends a line and waits for it to come back. `false`: the connection broke.
async fn exchange(stream: &mut TcpStream, line: &str) -> bool {
    if stream.write_all(line.as_bytes()).await.is_err() {
        return false;
    }
    let mut got = vec![0; line.len()];
    stream.read_exact(&mut got).await.is_ok() && got == line.as_bytes()
}

#[tokio::test]
async fn a_share_of_the_exchanges_is_cut_and_the_same_ones_each_time() {
    let mut runs = Vec::new();
    for _ in 0..2 {
        let proxy = Proxy::start(echo().await, 11).await.unwrap();
        proxy.set(Weather::fair().cut_per_mille(100));
        let mut broken = Vec::new();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        for number in 0..300 {
            if !exchange(&mut stream, &format!("line {number}\n")).await {
                broken.push(number);
                stream = TcpStream::connect(proxy.address()).await.unwrap();
            }
        }
        let traffic = proxy.traffic();
        assert_eq!((traffic.cut, traffic.exchanges), (broken.len() as u64, 300));
        assert!((10..60).contains(&traffic.cut), "a tenth, about: {traffic:?}");
        runs.push(broken);
    }
    assert_eq!(runs[0], runs[1]);
}

#[tokio::test]
async fn what_is_refused_or_cut_is_reset_and_works_again_in_fair_weather() {
    let proxy = Proxy::start(echo().await, 1).await.unwrap();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    assert!(exchange(&mut stream, "before\n").await);
    proxy.cut_all();
    let error = stream.read(&mut [0; 1]).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);

    proxy.set(Weather::fair().refuse(true));
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    assert!(!exchange(&mut stream, "refused\n").await);
    proxy.set(Weather::fair());
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    assert!(exchange(&mut stream, "after\n").await);
}

#[tokio::test]
async fn a_black_hole_answers_nothing_and_keeps_the_connection() {
    let proxy = Proxy::start(echo().await, 1).await.unwrap();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    proxy.set(Weather::fair().black_hole(true));
    stream.write_all(b"lost\n").await.unwrap();
    let silence = tokio::time::timeout(Duration::from_millis(50), stream.read(&mut [0; 1])).await;
    assert!(silence.is_err(), "neither bytes nor an end: {silence:?}");
    proxy.set(Weather::fair());
    assert!(exchange(&mut stream, "found\n").await);
}

#[tokio::test]
async fn what_is_delayed_is_not_early() {
    let proxy = Proxy::start(echo().await, 1).await.unwrap();
    proxy.set(Weather::fair().delay(Duration::from_millis(30)));
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    let started = std::time::Instant::now();
    assert!(exchange(&mut stream, "late\n").await);
    assert!(started.elapsed() >= Duration::from_millis(60), "each way");
}

#[tokio::test]
async fn a_dropped_proxy_closes_everything() {
    let proxy = Proxy::start(echo().await, 1).await.unwrap();
    let address = proxy.address();
    let mut stream = TcpStream::connect(address).await.unwrap();
    assert!(exchange(&mut stream, "before\n").await);
    drop(proxy);
    assert!(!matches!(stream.read(&mut [0; 1]).await, Ok(1..)));
    assert!(TcpStream::connect(address).await.is_err());
}
