//! Baseline for servers: runs the SQL texts of a file, one per line, with the crate `postgres` or `mysql` alone: kept
//! connections, one query per message, no limits, rows as texts. `bare_server URL THREADS FILE` prints the elapsed
//! seconds.

use std::error::Error;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use mysql::prelude::Queryable;
use postgres::{NoTls, SimpleQueryMessage};

/// Runs a text on a connection.
type Ask = Box<dyn FnMut(&str) -> Result<(), Box<dyn Error + Send + Sync>> + Send>;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, threads, file] = &arguments[..] else { return Err("bare_server URL THREADS FILE".into()) };
    let text = std::fs::read_to_string(file)?;
    let queries: Vec<&str> = text.lines().collect();
    let clients = (0..threads.parse()?).map(|_| connect(url)).collect::<Result<Vec<_>, _>>()?;
    let next = AtomicUsize::new(0);
    let start_time = Instant::now();
    std::thread::scope(|scope| {
        let run = |mut ask: Ask| {
            let (queries, next) = (&queries, &next);
            scope.spawn(move || {
                while let Some(sql) = queries.get(next.fetch_add(1, Ordering::Relaxed)) {
                    ask(sql)?;
                }
                Ok::<_, Box<dyn Error + Send + Sync>>(())
            })
        };
        let loops: Vec<_> = clients.into_iter().map(run).collect();
        loops.into_iter().try_for_each(|worker| {
            worker.join().map_err(|_| "a thread panicked".to_owned())?.map_err(|e| e.to_string())
        })
    })?;
    println!("{:.9}", start_time.elapsed().as_secs_f64());
    Ok(())
}

fn connect(url: &str) -> Result<Ask, Box<dyn Error>> {
    if url.starts_with("mysql://") {
        // By default the client would switch to the server's socket, unlike the other programs under test.
        let options = mysql::OptsBuilder::from_opts(mysql::Opts::from_url(url)?).prefer_socket(false);
        let mut client = mysql::Conn::new(options)?;
        return Ok(Box::new(move |sql| {
            let rows = client.query_iter(sql)?.map(|row| row.map(mysql::Row::unwrap)).collect::<Result<Vec<_>, _>>()?;
            black_box(rows);
            Ok(())
        }));
    }
    let mut client = postgres::Client::connect(url, NoTls)?;
    Ok(Box::new(move |sql| {
        let rows: Vec<Vec<Option<String>>> = client
            .simple_query(sql)?
            .iter()
            .filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|i| row.get(i).map(str::to_owned)).collect()),
                _ => None,
            })
            .collect();
        black_box(rows);
        Ok(())
    }))
}
