//! What commands print: several paths at once, errors as JSON, progress on a terminal.

use std::process::Command;

use crate::support;
use support::{Place, Ran};

#[test]
fn several_paths_are_done_one_after_the_other() {
    let place = Place::with_image();
    place.run(&["mkfs", "-q", "b.img", "8M", "-L", "other"]).succeeds();
    let out = |args: &[&str]| place.run(args).succeeds().out();
    assert_eq!(out(&["cat", "a.img:/file", "a.img:/dir/again"]), "hello\nhello\n");
    let stat = place.run(&["stat", "--json", "a.img:/file", "b.img:/lost+found"]).succeeds();
    let values: Vec<serde_json::Value> = serde_json::Deserializer::from_slice(&stat.output.stdout)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!((&values[0]["image"], &values[0]["path"]), (&"a.img".into(), &"/file".into()));
    assert_eq!((&values[1]["image"], &values[1]["path"]), (&"b.img".into(), &"/lost+found".into()));
    // Files first, then directories with headings, as ls has it.
    let listed = out(&["ls", "a.img:/dir", "b.img", "a.img:/file"]);
    let expected = "a.img:/file\n\na.img:/dir:\nagain\ndeep\nlink\n\nb.img:/:\nlost+found\n";
    assert_eq!(listed, expected);
    let found = out(&["find", "a.img:/dir", "b.img", "-type", "d"]);
    assert_eq!(found, "a.img:/dir\na.img:/dir/deep\nb.img:/\nb.img:/lost+found\n");
    let tree = out(&["tree", "a.img:/dir/deep", "b.img"]);
    assert!(tree.starts_with("a.img:/dir/deep\n") && tree.contains("b.img:/\n"), "{tree}");
    let extents = place.run(&["extents", "--json", "a.img:/file", "a.img:/sparse"]).succeeds();
    let paths: Vec<_> = extents.json_lines().iter().map(|value| value["path"].clone()).collect();
    assert_eq!(paths, ["/file", "/sparse"]);
    let info = out(&["info", "a.img", "b.img"]);
    assert_eq!(info.matches("UUID").count(), 2, "{info}");
    // One path is as ever.
    assert_eq!(out(&["ls", "a.img:/dir"]), "again\ndeep\nlink\n");
    assert!(place.run(&["ls", "--json", "a.img"]).json_lines()[0].get("image").is_none());
}

#[test]
fn of_several_paths_the_others_are_done_all_the_same() {
    let place = Place::with_image();
    for command in ["ls", "cat", "stat", "tree", "find", "extents"] {
        let some = [command, "a.img:/none", "a.img:/file", "gone.img:/x"];
        let ran = place.run(&some).ends_with(1).complains(&["gone.img"]);
        assert!(ran.err().contains("a.img:/none: no such file"), "{command}: {}", ran.err());
        assert!(!ran.out().is_empty(), "{command}");
        // With nothing done, the code of the first failure.
        place.run(&[command, "a.img:/none", "a.img:/never"]).ends_with(9);
    }
}

/// Standard output on a full disk: what it was to hold is lost, and the exit code says so.
#[test]
fn what_could_not_be_printed_is_a_failure() {
    let place = Place::with_image();
    place.run(&["mkfs", "-q", "c.img", "8M"]).succeeds();
    place.run(&["cp", "a.img:/file", "c.img:/file"]).succeeds();
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for args in [
        &["build", "b.img", "-F", "--json", "--from", "source"][..],
        &["build", "b.img", "-F", "--plan", "--from", "source"],
        &["build", "b.img", "-F", "-q", "--verity", "--from", "source"],
        &["mkfs", "b.img", "-F", "--json", "8M"],
        &["mkfs", "b.img", "-F", "--plan", "8M"],
        &["ls", "a.img"],
        &["info", "a.img"],
        &["check", "a.img"],
        &["frag", "a.img"],
        &["--help"],
        &["--version"],
        &["check", "-h"],
        &["completions", "bash"],
        &["man"],
    ] {
        let output = place.command(args).stdout(full()).output().unwrap();
        let ran = Ran { args: args.join(" "), output };
        let said = ran.ends_with(6).err();
        assert!(said.contains("cannot write the output: No space"), "{args:?}: {said}");
    }
}

fn errors(ran: &Ran) -> Vec<serde_json::Value> {
    let text = ran.err();
    let parse = |line: &str| {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{}: {line}: {error}", ran.args))
    };
    text.lines().map(parse).collect()
}

#[test]
fn errors_are_objects_where_the_data_is() {
    let place = Place::with_image();
    std::fs::write(place.path("x.zip"), [&b"PK\x03\x04"[..], &[0; 5000]].concat()).unwrap();
    let table: &[(&[&str], i32, &str, &str)] = &[
        (&["stat", "--json", "a.img:/none"], 9, "not-found", "a.img:/none"),
        (&["ls", "--json", "gone.img"], 8, "io", "gone.img"),
        (&["info", "--json", "x.zip"], 4, "image", "x.zip"),
        (&["tree", "--json", "a.img/dir"], 8, "io", "a.img/dir"),
        (&["find", "--json", "a.img:/none"], 9, "not-found", "a.img:/none"),
        (&["extents", "--json", "a.img:/none"], 9, "not-found", "a.img:/none"),
        (&["getfattr", "--json", "a.img:/none"], 9, "not-found", "a.img:/none"),
        (&["getfacl", "--json", "a.img:/none"], 9, "not-found", "a.img:/none"),
        (&["lsattr", "--json", "a.img:/none"], 9, "not-found", "a.img:/none"),
        (&["replay", "--json", "x.zip"], 4, "image", "x.zip"),
        (&["build", "--json", "b.img", "--from", "x.zip"], 3, "input", "x.zip"),
        (&["build", "--json", "a.img", "--from", "source"], 7, "refused", "a.img"),
        (&["mkfs", "--json", "a.img"], 7, "refused", "a.img"),
    ];
    for (args, code, family, object) in table {
        let ran = place.run(args).ends_with(*code);
        let said = errors(&ran);
        let [error] = &said[..] else { panic!("{}: {said:?}", ran.args) };
        assert_eq!(error["level"], "error", "{}", ran.args);
        assert_eq!((&error["code"], &error["family"]), (&(*code).into(), &(*family).into()));
        assert_eq!(error["object"], *object, "{}", ran.args);
        assert!(error["message"].as_str().unwrap().contains(object), "{error}");
        assert!(error.get("hint").is_some(), "{error}");
        assert_eq!(ran.out(), "", "{}", ran.args);
    }
    // Mistakes on the command line too; not where JSON was not asked for.
    for args in [&["ls", "--json", "--nonsense", "a.img"][..], &["info", "--json"]] {
        let ran = place.run(args).ends_with(2);
        let said = errors(&ran);
        assert_eq!((said.len(), &said[0]["family"]), (1, &"usage".into()), "{}", ran.err());
    }
    assert!(!place.run(&["ls", "--nonsense", "a.img"]).ends_with(2).err().contains("family"));
    assert!(place.run(&["ls", "--", "--json"]).ends_with(8).err().starts_with("extant: "));
    // Several: each is an object, and what could be read is on standard output.
    let ran = place.run(&["ls", "--json", "a.img:/none", "a.img:/file", "gone.img"]).ends_with(1);
    assert_eq!(errors(&ran).len(), 2);
    assert_eq!(ran.json_lines().len(), 1);
}

/// Runs a command whose standard error is a terminal of 100 columns, and prints what that shows.
const TERMINAL: &str = "
import fcntl, os, pty, select, signal, struct, sys, termios, time
pid, terminal = pty.fork()
if pid == 0:
    fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 100, 0, 0))
    os.dup2(os.open('/dev/null', os.O_RDWR), 1)
    os.execv(sys.argv[1], sys.argv[1:])
# Long enough for a bar, however fast the machine is: it is stopped most of the time.
def drain(seconds):
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            try:
                shown = os.read(terminal, 65536)
            except OSError:
                shown = b''
            if not shown:
                return False
            sys.stdout.buffer.write(shown)
    return True
begun = time.monotonic()
while time.monotonic() - begun < 3 and drain(0.002):
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.12)
    os.kill(pid, signal.SIGCONT)
while drain(1):
    pass
sys.stdout.flush()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

/// What a terminal would have shown; `None`, with a line about it, where there is no Python.
fn on_terminal(place: &Place, args: &[&str], terminal: &str) -> Option<String> {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "120", "python3", "-c", TERMINAL, support::EXTANT]).args(args);
    command.env("TERM", terminal).current_dir(place.0.path());
    let output = command.output().ok().filter(|output| output.status.code() != Some(127));
    let Some(output) = output else {
        println!("skipped: python3 is not installed");
        return None;
    };
    let ran = Ran { args: args.join(" "), output }.succeeds();
    Some(ran.out())
}

#[test]
fn progress_is_shown_on_terminals_and_nowhere_else() {
    let place = Place::new();
    std::fs::create_dir(place.path("source")).unwrap();
    let grow = |files: std::ops::Range<u32>| {
        for number in files {
            let path = place.path(&format!("source/{number:05}"));
            std::fs::write(path, vec![b'x'; 60_000]).unwrap();
        }
        let _ = std::fs::remove_file(place.path("a.img"));
        place.run(&["build", "-q", "a.img", "--from", "source", "--size", "auto"]).succeeds();
    };
    let mut files = 600;
    grow(0..files);
    let clear = || {
        let _ = std::fs::remove_dir_all(place.path("out"));
        let _ = std::fs::remove_file(place.path("c.img"));
    };
    let build = ["build", "c.img", "--from", "source", "--threads", "1"];
    for args in [&["extract", "a.img", "out"][..], &["cp", "-r", "a.img:/", "out"], &build] {
        clear();
        let Some(mut shown) = on_terminal(&place, args, "xterm") else { return };
        // What is over within half a second shows nothing: on a fast machine there must be more to do.
        while !shown.contains("iB/s") && files < 10_000 {
            grow(files..2 * files);
            files *= 2;
            clear();
            shown = on_terminal(&place, args, "xterm").unwrap();
        }
        // Bytes and rate; and how much is left, if that is known.
        assert!(shown.contains("iB/s") && (args != build || shown.contains("% ")), "{shown}");
        // Nobody draws for a terminal that cannot move its cursor, nor with -q, nor into a pipe.
        let quiet = [&args[..1], &["-q"], &args[1..]].concat();
        for (args, terminal) in [(args, "dumb"), (&quiet[..], "xterm")] {
            clear();
            let shown = on_terminal(&place, args, terminal).unwrap();
            assert!(!shown.contains("iB/s") && !shown.contains('\u{1b}'), "{args:?}: {shown}");
        }
        clear();
        let piped = place.run(args).succeeds().err();
        assert!(!piped.contains("iB/s") && !piped.contains('\u{1b}'), "{args:?}: {piped}");
    }
}

/// `make install` puts the documents where the installed command says that they are.
#[test]
fn the_documents_that_messages_point_to_are_installed() {
    let place = Place::new();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let installed = place.path("root/usr");
    let variables = [
        format!("EXTANT={}", support::EXTANT),
        "PREFIX=/usr".to_owned(),
        format!("DESTDIR={}", place.path("root").display()),
    ];
    let mut make = Command::new("make");
    // What `make install` does once the command is built as a whole, which takes minutes.
    make.args(["-C", source, "-s", "install-files"]).args(variables);
    let Ok(output) = make.output() else {
        println!("skipped: make is not installed");
        return;
    };
    Ran { args: "install".into(), output }.succeeds();
    let extant = Command::new(installed.join("bin/extant"))
        .args(["mount", "-o", "nonsense-of-mine", "x", "y"])
        .current_dir(place.0.path())
        .output()
        .unwrap();
    let ran = Ran { args: "mount".into(), output: extant }.ends_with(2);
    let document = installed.join("share/doc/extant/mounting.md");
    assert!(document.exists());
    let real = document.canonicalize().unwrap();
    let said = ran.err();
    let named = [&document, &real].iter().any(|path| said.contains(&*path.to_string_lossy()));
    assert!(named, "{said}");
    // The manual pages name the place without what was only for the installation.
    let page = std::fs::read_to_string(installed.join("share/man/man1/extant-ls.1")).unwrap();
    assert!(page.contains("/usr/share/doc/extant/troubleshooting.md"), "{page}");
    for name in
        ["exit-codes.md", "json.md", "semantics.md", "compatibility.md", "troubleshooting.md"]
    {
        assert!(installed.join("share/doc/extant").join(name).exists(), "{name}");
    }
}

#[test]
fn help_and_suggestions_tell_of_all_commands_and_their_options() {
    let place = Place::new();
    let said = |args: &[&str]| {
        let ran = place.run(args);
        format!("{}{}", ran.out(), ran.err())
    };
    let of_all = said(&["--help"]);
    for words in ["Build an image from", "check ", "--device-engine"] {
        assert!(of_all.contains(words), "{words}: {of_all}");
    }
    // Options of a command are made when they are asked for, whichever way.
    for args in [
        &["check", "--help"][..],
        &["help", "check"],
        &["--device-engine", "auto", "check", "--help"],
    ] {
        let text = said(args);
        assert!(text.contains("--threads") && text.contains("Exit codes:"), "{args:?}: {text}");
    }
    assert!(said(&["chekc"]).contains("'check'"));
    assert!(said(&["check", "--thread"]).contains("'--threads'"));
    let script = said(&["completions", "bash"]);
    assert!(script.contains("--threads") && script.contains("--overlay"), "{script}");
}

/// `extant ls a.img >&-`: what nobody gets is not a success, and what prints nothing is one.
#[test]
fn without_a_standard_output_what_is_printed_is_an_error() {
    let place = Place::with_image();
    let without = |args: &[&str]| {
        let whole = place.command(args);
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$0\" \"$@\" >&-"]).arg(whole.get_program());
        shell.args(whole.get_args()).current_dir(place.0.path());
        Ran { args: args.join(" "), output: shell.output().unwrap() }
    };
    let printing = [
        &["ls", "a.img"][..],
        &["info", "a.img"],
        &["cat", "a.img:/file"],
        &["cat", "a.img:/file", "a.img:/dir/again"],
        &["tar", "a.img"],
        &["tar", "-o", "-", "a.img"],
        &["find", "a.img"],
        &["check", "a.img"],
        &["diff", "--layer", "-", "a.img", "a.img"],
        &["completions", "bash"],
        &["man"],
        &["--version"],
        &["--help"],
        &["ls", "--help"],
    ];
    for args in printing {
        let code = if args[0] == "diff" { 2 } else { 8 };
        without(args).ends_with(code).complains(&["cannot write the output"]);
    }
    for args in [&["mkdir", "a.img:/new"][..], &["check", "-q", "a.img"], &["rm", "a.img:/file"]] {
        without(args).succeeds();
    }
    assert!(place.run(&["ls", "a.img"]).succeeds().out().contains("new\n"));
    // To nowhere is somewhere.
    let mut command = place.command(&["ls", "a.img"]);
    assert!(command.stdout(std::process::Stdio::null()).status().unwrap().success());
}

/// `extant write a.img:/file <&-`: nothing is not what somebody meant to write.
#[test]
fn without_a_standard_input_nothing_is_replaced() {
    let place = Place::with_image();
    let before = place.run(&["cat", "a.img:/file"]).succeeds().out().to_owned();
    assert!(!before.is_empty());
    let reading = [
        &["write", "a.img:/file"][..],
        &["write", "--in-place", "a.img:/file"],
        &["setfattr", "--restore", "-", "a.img"],
        &["setfacl", "-M", "-", "a.img:/file"],
        &["build", "new.img", "--from", "-"],
    ];
    for args in reading {
        let whole = place.command(args);
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$0\" \"$@\" <&-"]).arg(whole.get_program());
        shell.args(whole.get_args()).current_dir(place.0.path());
        let ran = Ran { args: args.join(" "), output: shell.output().unwrap() };
        ran.ends_with(8).complains(&["Bad file descriptor"]);
    }
    assert_eq!(place.run(&["cat", "a.img:/file"]).succeeds().out(), before);
    // From nowhere is from somewhere.
    let mut command = place.command(&["write", "a.img:/file"]);
    assert!(command.stdin(std::process::Stdio::null()).status().unwrap().success());
    assert_eq!(place.run(&["cat", "a.img:/file"]).succeeds().out(), "");
}
