//! The C and C++ library as its users have it: installed, found by pkg-config, and used by compiled C and
//! C++ programs. The tests run against a real publisher, and include misuse.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::SystemTime;

use serde_json::Value;
use tempfile::TempDir;
use tickcast::{abi, event, item, monitor, reader};
use tickcast_hlog::read_intervals;
use tickcast_subscriber::record;
use tickcast_test_support::system_calls::{calls_are_receiving, once, strace_works};
use tickcast_test_support::{
    PATIENCE, Publisher, channel, endless, free_group, number, one_channel, signal, simulated,
    verbs_libraries,
};
use xxhash_rust::xxh3::xxh3_128;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Prints a skip notice to stderr directly, because the test harness captures the output of a passing test.
fn skipped(why: &str) {
    writeln!(std::io::stderr(), "\nSKIPPED: {why}").expect("stderr takes it");
}

fn is_here(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        skipped(&format!("{program} is not here; `make setup` installs it"));
    }
    found
}

#[test]
fn header_matches_cbindgen_output() {
    let capi = root().join("subscriber/capi");
    let config = cbindgen::Config::from_file(capi.join("cbindgen.toml")).expect("a config");
    let mut builder = cbindgen::Builder::new().with_config(config);
    let mut sources: Vec<PathBuf> = std::fs::read_dir(capi.join("src"))
        .expect("the sources")
        .map(|entry| entry.expect("a source").path())
        .filter(|path| !path.ends_with("lib.rs"))
        .collect();
    sources.sort();
    for source in sources {
        builder = builder.with_src(source);
    }
    let mut made = Vec::new();
    builder.generate().expect("a header").write(&mut made);
    let made = String::from_utf8(made).expect("text");
    // Drop the headline, which is a Rust convention. The text under it is for all users.
    let made = made.replace(" * # Safety\n", "");
    let path = root().join("subscriber/include/tickcast.h");
    if std::env::var_os("TICKCAST_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).expect("the header is written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let line = made
        .lines()
        .zip(committed.lines())
        .position(|(a, b)| a != b);
    assert!(
        made == committed,
        "subscriber/include/tickcast.h is stale from line {line:?} on: run \
         TICKCAST_WRITE_HEADER=1 cargo test -p tickcast-tests --test embedding header"
    );
}

#[test]
fn header_examples_compile_as_c_and_cpp() {
    let header = std::fs::read_to_string(root().join("subscriber/include/tickcast.h"));
    let header = header.expect("the header");
    let examples = header.split("```c\n").skip(1);
    let examples = examples.map(|rest| rest.split("```").next().expect("an end"));
    let functions: Vec<_> = examples
        .enumerate()
        .map(|(n, example)| format!("void example_{n}(void) {{\n{example}\n}}\n"))
        .collect();
    assert!(functions.len() >= 8, "what one begins with has an example");
    let program = format!(
        "#include <stdio.h>\n#include <tickcast.h>\n\
         extern TickcastSubscriber *subscriber;\nextern TickcastMonitor *monitor;\n\
         extern const TickcastItem *item;\nextern void *context;\n\
         int32_t on_item(void *context, const TickcastItem *item);\n\
         void on_log(void *context, uint32_t level, const char *target, const char *line);\n{}",
        functions.concat()
    );
    for (source, compiler) in [("examples.c", "cc"), ("examples.cpp", "c++")] {
        if is_here(compiler) {
            let path = INSTALLED.path(source);
            std::fs::write(&path, &program).expect("the program is written");
            INSTALLED.compile(&path, &["-c"], &format!("{source}.o"));
        }
    }
}

/// The library as installed by `make install-c`.
struct Installed {
    folder: TempDir,
}

static INSTALLED: LazyLock<Installed> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(root().join("subscriber/capi/install"))
        .arg(archive())
        .args((!verbs_libraries().is_empty()).then_some("RDMA=yes"))
        .arg(format!("DESTDIR={}", folder.path().display()))
        .arg("PREFIX=/usr")
        .output();
    succeeded(&output.expect("the script runs"));
    Installed { folder }
});

/// Returns the static library that was built with this test.
pub(crate) fn archive() -> PathBuf {
    let here = std::env::current_exe().expect("a test has a path");
    let deps = here.parent().expect("target/<profile>/deps");
    let all = std::fs::read_dir(deps).expect("a folder").flatten();
    let is_it = |name: &OsStr| {
        let name = name.to_string_lossy();
        let stem = name
            .strip_suffix(".a")
            .and_then(|it| it.strip_prefix("libtickcast"));
        stem.is_some_and(|it| it.is_empty() || it.starts_with('-'))
    };
    let found = all.filter(|entry| is_it(&entry.file_name()));
    let time = |path: &PathBuf| {
        let data = path.metadata().and_then(|data| data.modified());
        data.unwrap_or(SystemTime::UNIX_EPOCH)
    };
    let newest = found.map(|entry| entry.path()).max_by_key(time);
    newest.expect("libtickcast.a beside this test")
}

fn succeeded(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}:\n{out}{error}", output.status);
    out
}

impl Installed {
    fn lib(&self) -> PathBuf {
        self.folder.path().join("usr/lib")
    }

    /// Returns the flags that pkg-config gives for a program.
    fn flags(&self, is_static: bool) -> Vec<String> {
        let output = Command::new("pkg-config")
            .args(["--cflags", "--libs", "tickcast"])
            .args(is_static.then_some("--static"))
            .env("PKG_CONFIG_PATH", self.lib().join("pkgconfig"))
            .env("PKG_CONFIG_SYSROOT_DIR", self.folder.path())
            .env("PKG_CONFIG_ALLOW_SYSTEM_CFLAGS", "1")
            .env("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1")
            .output();
        let flags = succeeded(&output.expect("pkg-config is here"));
        flags.split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles a C or C++ program with the strictest warnings.
    fn compile(&self, source: &Path, options: &[&str], name: &str) -> PathBuf {
        let is_cpp = source.extension().is_some_and(|it| it == "cpp");
        let (compiler, standard) = if is_cpp {
            ("c++", "-std=c++17")
        } else {
            ("cc", "-std=c11")
        };
        let program = self.folder.path().join(name);
        let mut flags = self.flags(false);
        if options.contains(&"-static-library") {
            flags = self.flags(true);
            let lib = self.lib().join("libtickcast.a").display().to_string();
            flags
                .iter_mut()
                .filter(|it| *it == "-ltickcast")
                .for_each(|it| it.clone_from(&lib));
        }
        let output = Command::new(compiler)
            .args([
                standard,
                "-g",
                "-O1",
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
            ])
            .args([
                "-D_POSIX_C_SOURCE=200809L",
                "-DTICKCAST_TESTING",
                "-pthread",
            ])
            .args(options.iter().filter(|it| **it != "-static-library"))
            .arg(source)
            .arg("-o")
            .arg(&program)
            .args(flags)
            .output();
        succeeded(&output.expect("the compiler runs"));
        program
    }

    /// Returns a command for a program. A program that hangs is ended.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("timeout");
        command.arg(PATIENCE.as_secs().to_string()).arg(program);
        command.env("LD_LIBRARY_PATH", self.lib());
        command.stdin(Stdio::null());
        command
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn test_source(name: &str) -> PathBuf {
    root().join("tests/embedding/c_abi").join(name)
}

fn example(name: &str) -> PathBuf {
    root().join("subscriber/examples").join(name)
}

/// Parses a program's name=value output.
fn numbers(said: &str) -> BTreeMap<&str, u64> {
    let pairs = said.lines().filter_map(|line| line.split_once('='));
    pairs
        .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
        .collect()
}

fn publisher(messages: u64, subscribers: u32) -> Publisher {
    let input = simulated(messages, 20_000, subscribers);
    Publisher::start(&one_channel(&[free_group()], input))
}

/// Returns a publisher that lasts as long as the program.
fn endless_publisher() -> Publisher {
    Publisher::start(&one_channel(&[free_group()], endless(20_000, 1)))
}

fn digest_of(file: &Path) -> Value {
    let bytes = std::fs::read(file).expect("the program wrote it");
    format!("{:032x}", xxh3_128(&bytes)).into()
}

/// Sizes and offsets of a struct under its C name, and the C code that prints them.
struct Layout {
    name: &'static str,
    fields: Vec<(&'static str, usize)>,
    size: usize,
}

macro_rules! layouts {
    ($($rust:ty as $c:ident: $($field:ident)+;)+) => {
        [$(Layout {
            name: stringify!($c),
            fields: vec![$((stringify!($field), offset_of!($rust, $field))),+],
            size: size_of::<$rust>(),
        }),+]
    };
}

#[test]
fn c_and_rust_agree_on_every_size_and_offset() {
    let layouts = layouts! {
        record::RecordHeader as RecordHeader: rtype publisher_id instrument_id ts_event;
        record::MboMsg as MboMsg:
            hd order_id price size flags channel_id action side ts_recv ts_in_delta
            sequence;
        record::TradeMsg as TradeMsg:
            hd price size action side flags depth ts_recv ts_in_delta sequence;
        record::Mbp1Msg as Mbp1Msg:
            hd price size action side flags depth ts_recv ts_in_delta sequence
            levels;
        record::StatusMsg as StatusMsg:
            hd ts_recv action reason trading_event is_trading is_quoting
            is_short_sell_restricted _reserved;
        record::InstrumentDefMsg as InstrumentDefMsg:
            hd ts_recv min_price_increment display_factor expiration activation
            high_limit_price low_limit_price max_price_variation
            unit_of_measure_qty min_price_increment_amount price_ratio strike_price
            raw_instrument_id leg_price leg_delta inst_attrib_value underlying_id
            market_depth_implied market_depth market_segment_id max_trade_vol
            min_lot_size min_lot_size_block min_lot_size_round_lot min_trade_vol
            contract_multiplier decay_quantity original_contract_size
            leg_instrument_id leg_ratio_price_numerator leg_ratio_price_denominator
            leg_ratio_qty_numerator leg_ratio_qty_denominator leg_underlying_id
            appl_id maturity_year decay_start_date channel_id leg_count leg_index
            currency settl_currency secsubtype raw_symbol group exchange asset cfi
            security_type unit_of_measure underlying strike_price_currency
            leg_raw_symbol instrument_class match_algorithm main_fraction
            price_display_format sub_fraction underlying_product
            security_update_action maturity_month maturity_day maturity_week
            user_defined_instrument contract_multiplier_unit flow_schedule_type
            tick_rule leg_instrument_class leg_side _reserved;
        record::SymbolMappingMsg as SymbolMappingMsg:
            hd stype_in stype_in_symbol stype_out stype_out_symbol start_ts end_ts;
        record::ImbalanceMsg as ImbalanceMsg:
            hd ts_recv ref_price auction_time cont_book_clr_price
            auct_interest_clr_price ssr_filling_price ind_match_price upper_collar
            lower_collar paired_qty total_imbalance_qty market_imbalance_qty
            unpaired_qty auction_type side auction_status freeze_status
            num_extensions unpaired_side significant_imbalance _reserved;
        record::StatMsg as StatMsg:
            hd ts_recv ts_ref price quantity sequence ts_in_delta stat_type
            channel_id update_action stat_flags _reserved;
        item::Item as Item: kind record_size position record event;
        item::Position as Position:
            epoch sequence record source_position sent_at_ns received_at_ns
            missing_for_ns conflated channel source via quality reserved;
        event::Event as Event:
            kind cause first last sequences records took_ns since_ns from to messages
            source_position events lost_records losses_of_unknown_size instruments
            instrument_count source line wrong_one_delivered epoch_changes source_losses
            fencing_violations state reserved;
        event::Place as Place: epoch sequence record;
        monitor::ChannelReport as ChannelReport:
            name channel ended epoch delivered heard lag delivered_records
            lost_records missing_datagrams missing_recovered missing_lost missing_open;
        monitor::Latency as Latency:
            count min_ns p50_ns p90_ns p99_ns p999_ns p9999_ns max_ns mean_ns
            clock_skewed;
        reader::ReaderReport as ReaderReport:
            name channel reserved records events conflated_records overruns
            overrun_records overrun_events lag;
        reader::Summary as Summary: delivered_records lost_records events is_whole channels;
        abi::Sizes as Sizes:
            sizes abi_version item position event channel_report reader_report
            latency summary record_header mbo trade mbp1 status instrument_def
            symbol_mapping imbalance stat;
    };
    let (mut lines, mut expected) = (String::new(), String::new());
    for Layout { name, fields, size } in &layouts {
        lines += &format!("P(\"{name}\", sizeof(Tickcast{name}));\n");
        expected += &format!("{name}={size}\n");
        for (field, offset) in fields {
            lines += &format!("P(\"{name}.{field}\", offsetof(Tickcast{name}, {field}));\n");
            expected += &format!("{name}.{field}={offset}\n");
        }
    }
    let program = format!(
        "#include <stdio.h>\n#include <tickcast.h>\n#define P(n, v) printf(\"%s=%zu\\n\", n, v)\n\
         int main(void) {{\n{lines}return tickcast_abi_version() != TICKCAST_ABI_VERSION;\n}}\n"
    );
    for (source, compiler) in [("layout.c", "cc"), ("layout.cpp", "c++")] {
        if !is_here(compiler) {
            continue;
        }
        let path = INSTALLED.path(source);
        std::fs::write(&path, &program).expect("the program is written");
        let program = INSTALLED.compile(&path, &[], &format!("{source}.program"));
        let output = INSTALLED.command(&program).output();
        assert_eq!(succeeded(&output.expect("it runs")), expected, "{source}");
    }
}

#[test]
fn hello_in_c_and_in_cpp_prints_every_record_and_event() {
    let mut sources = vec!["hello.c"];
    if is_here("c++") {
        sources.push("hello.cpp");
    }
    let programs: Vec<_> = sources
        .iter()
        .map(|source| INSTALLED.compile(&example(source), &[], &format!("{source}.program")))
        .collect();
    let publisher = publisher(5_000, programs.len() as u32);
    let running: Vec<_> = programs
        .iter()
        .map(|program| {
            let mut command = INSTALLED.command(program);
            command
                .args([&publisher.control.to_string(), "all"])
                .stdout(Stdio::piped());
            command.spawn().expect("it starts")
        })
        .collect();
    let said: Vec<_> = running
        .into_iter()
        .map(|child| succeeded(&child.wait_with_output().expect("it ends")))
        .collect();
    let (_, summary) = publisher.finish();
    for (said, source) in said.iter().zip(sources) {
        let records = said
            .lines()
            .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
        let published = number(&summary, "published_records");
        assert_eq!(records.count() as u64, published, "{source}");
        assert!(
            said.lines()
                .any(|line| line.starts_with("joined after sequence"))
        );
        assert!(said.lines().any(|line| line == "end of session"));
    }
    let nobody = INSTALLED
        .command(&programs[0])
        .arg("no-such-host.invalid:1")
        .output();
    let nobody = nobody.expect("it runs");
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("can't be looked up"));
    assert_eq!(nobody.status.code(), Some(1));
}

#[test]
fn hello_examples_report_unknown_channel() {
    let publisher = publisher(2_000, 1);
    let mut sources = vec!["hello.c"];
    if is_here("c++") {
        sources.push("hello.cpp");
    }
    for source in sources {
        let name = format!("{source}.mistyped");
        let program = INSTALLED.compile(&example(source), &[], &name);
        let mut hello = INSTALLED.command(&program);
        hello.args([&publisher.control.to_string(), "equitees"]);
        hello.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut hello = hello.spawn().expect("it starts");
        let stderr = hello.stderr.take().expect("a pipe");
        let mut said = String::new();
        BufReader::new(stderr).read_line(&mut said).expect("text");
        signal(hello.id(), "TERM");
        hello.wait().expect("it ends");
        assert!(said.contains("equitees"), "{source}: {said}");
    }
}

/// Follows in all ways at once at 5% loss. `options` go to the compiler, and `runner` precedes the program.
fn follow_every_way(options: &[&str], runner: &[&str], name: &str, messages: u64) {
    let powers = INSTALLED.compile(&test_source("powers.c"), options, name);
    let ways = ["poll", "split", "run"];
    let publisher = publisher(messages, 3);
    let file = |way: &str| INSTALLED.path(&format!("{name}.{way}"));
    let running = ways.map(|way| {
        let mut command = match runner.split_first() {
            None => INSTALLED.command(&powers),
            Some((program, options)) => {
                let mut command = INSTALLED.command(Path::new(program));
                command.args(options).arg(&powers);
                command
            }
        };
        command
            .args([way, &publisher.control.to_string()])
            .arg(file(way));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("it starts")
    });
    let said = running.map(|child| succeeded(&child.wait_with_output().expect("it ends")));
    let (_, summary) = publisher.finish();
    let published = number(&summary, "published_records");
    assert!(published >= messages);
    let digest = &channel(&summary)["digest"];
    for (way, said) in ways.iter().zip(&said) {
        let said = numbers(said);
        println!("{way}: {said:?}");
        assert_eq!(
            (said["records"], said["lost"], said["whole"]),
            (published, 0, 1),
            "{way}"
        );
        assert!(
            said["missing_recovered"] > 0 && said["repaired"] > 0,
            "5% loss makes gaps"
        );
        assert!(said["instruments"] >= 20 && said["events"] > 3, "{way}");
        assert_eq!(&digest_of(&file(way)), digest, "{way}");
        let log = std::fs::read(file(&format!("{way}.hlog"))).expect("an interval log");
        let delivered = |tag: &str| tag == "all/sealed_to_delivered" || tag == "all/replayed";
        let intervals = read_intervals(&log).expect("whole lines").into_iter();
        let delivered = intervals.filter(|it| delivered(&it.tag));
        let logged: u64 = delivered.map(|it| it.samples.len()).sum();
        assert_eq!(logged, published, "{way}");
    }
    assert_eq!(numbers(&said[1])["other_records"], published);
    assert_eq!(
        &digest_of(&file("split.other")),
        digest,
        "the second reader"
    );
}

#[test]
fn c_program_follows_by_poll_split_and_run() {
    follow_every_way(&[], &[], "powers", 30_000);
}

#[test]
fn statically_linked_c_program_follows_all_ways() {
    follow_every_way(&["-static-library"], &[], "powers-static", 5_000);
}

#[test]
fn c_api_misuse_is_an_error_with_remedy() {
    let misuse = INSTALLED.compile(&test_source("misuse.c"), &[], "misuse");
    let publisher = endless_publisher();
    let output = INSTALLED
        .command(&misuse)
        .arg(publisher.control.to_string())
        .output();
    assert!(succeeded(&output.expect("it runs")).starts_with("every misuse"));
}

#[test]
fn cpp_wrapper_throws_and_loses_nothing_on_exception() {
    if !is_here("c++") {
        return;
    }
    let wrapper = INSTALLED.compile(&test_source("wrapper.cpp"), &[], "wrapper");
    let publisher = publisher(5_000, 1);
    let file = INSTALLED.path("wrapper.records");
    let mut command = INSTALLED.command(&wrapper);
    let output = command
        .arg(publisher.control.to_string())
        .arg(&file)
        .output();
    let said = succeeded(&output.expect("it runs"));
    let (_, summary) = publisher.finish();
    assert_eq!(
        numbers(&said)["records"],
        number(&summary, "published_records")
    );
    assert_eq!(digest_of(&file), channel(&summary)["digest"]);
}

/// The library itself is compiled without sanitizers. The address sanitizer sees only its allocations,
/// and the thread sanitizer nothing of it, so that run checks the C side for races.
#[test]
fn c_programs_are_clean_under_sanitizers() {
    let ignored = INSTALLED.path("ignored");
    std::fs::write(&ignored, "called_from_lib:libtickcast.so\n").expect("a file");
    let thread_options = format!("suppressions={}", ignored.display());
    const SANITIZERS: [(&str, &str); 2] = [
        ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
        ("-fsanitize=thread", "-fno-sanitize-recover=all"),
    ];
    for (index, options) in SANITIZERS.into_iter().enumerate() {
        let name = format!("misuse-{index}");
        let options = [options.0, options.1];
        let misuse = INSTALLED.compile(&test_source("misuse.c"), &options, &name);
        let publisher = endless_publisher();
        let mut command = INSTALLED.command(&misuse);
        command.env("TSAN_OPTIONS", &thread_options);
        let output = command.arg(publisher.control.to_string()).output();
        assert!(succeeded(&output.expect("it runs")).starts_with("every misuse"));
    }
    let address = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    follow_every_way(&address, &[], "powers-address", 5_000);
}

/// Counts allocations of all threads between the 5,000th and the 40,000th record: in C, in the worker and
/// in the reader of `split`. Where strace works, it also checks system calls.
#[test]
fn c_follower_neither_allocates_nor_calls_per_tick() {
    let program = INSTALLED.compile(&test_source("steady.c"), &[], "steady");
    for way in ["poll", "split"] {
        let run = |command: &mut Command| {
            let publisher = publisher(45_000, 1);
            let output = command.args([&publisher.control.to_string(), way]).output();
            numbers(&succeeded(&output.expect("it runs")))["allocations"]
        };
        // A machine that stops for a while causes gaps, and a repair buffer may grow. One clean run is
        // enough.
        let counted: Vec<_> = (0..20)
            .map(|_| run(&mut INSTALLED.command(&program)))
            .take_while(|allocations| *allocations > 0)
            .collect();
        assert!(counted.len() < 20, "{way}: {counted:?}");
        if let Err(why) = strace_works() {
            skipped(&why);
        } else {
            once(|| {
                let trace = INSTALLED.path("trace");
                let mut command = INSTALLED.command(Path::new("strace"));
                run(command.args(["-f", "-o"]).arg(&trace).arg(&program));
                calls_are_receiving(&trace, 35_000, way == "split")
            });
        }
    }
}

const VALGRIND: [&str; 6] = [
    "valgrind",
    "--quiet",
    "--error-exitcode=9",
    "--leak-check=full",
    "--show-leak-kinds=definite,indirect",
    "--errors-for-leak-kinds=definite",
];

#[test]
fn misuse_is_clean_under_valgrind() {
    if !is_here("valgrind") {
        return;
    }
    let misuse = INSTALLED.compile(&test_source("misuse.c"), &[], "misuse-valgrind");
    let mut command = INSTALLED.command(Path::new(VALGRIND[0]));
    command.args(&VALGRIND[1..]);
    let output = command.arg(&misuse).output().expect("it runs");
    assert!(succeeded(&output).starts_with("every misuse"));
}

/// Runs few ticks, because each takes the same path and all three programs share the host's cores.
#[test]
fn following_every_way_is_clean_under_valgrind() {
    if is_here("valgrind") {
        follow_every_way(&[], &VALGRIND, "powers-valgrind", 1_500);
    }
}

#[test]
fn shared_library_exports_only_our_versioned_symbols() {
    if !is_here("nm") {
        return;
    }
    let library = INSTALLED.lib().join("libtickcast.so");
    let output = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--with-symbol-versions"])
        .arg(&library)
        .output();
    let symbols = succeeded(&output.expect("nm runs"));
    let names = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().last());
    let names: Vec<_> = names.filter(|name| *name != "TICKCAST_1").collect();
    for name in &names {
        let ours = name
            .strip_suffix("@@TICKCAST_1")
            .is_some_and(|it| it.starts_with("tickcast_"));
        assert!(ours, "{name}");
    }
    let header = std::fs::read_to_string(root().join("subscriber/include/tickcast.h"));
    let header = header.expect("the header");
    let declared =
        |name: &&&str| header.contains(&format!("{}(", name.trim_end_matches("@@TICKCAST_1")));
    assert_eq!(
        names.iter().filter(declared).count(),
        names.len(),
        "all are in the header"
    );
    assert!(names.len() > 60);
}
