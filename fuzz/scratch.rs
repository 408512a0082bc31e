// Included by targets that need files. A module would be compiled several times over in the stable driver, which has all targets.

/// Creates the directory of this process for the files of `target`, in memory where the system has such a place: a file per
/// input would wear out a disk. A fuzzer ends without running destructors, so each one removes the leftovers of ended processes.
fn scratch(target: &str) -> std::path::PathBuf {
    const PREFIX: &str = "bowstring-fuzz-";
    let memory = std::path::PathBuf::from("/dev/shm");
    let above = if memory.is_dir() { memory } else { std::env::temp_dir() };
    for entry in std::fs::read_dir(&above).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.rsplit('-').next()?.parse::<u32>().ok());
        let ended = |process: u32| !std::path::Path::new(&format!("/proc/{process}")).exists();
        if std::path::Path::new("/proc/self").exists() && process.is_some_and(ended) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    let directory = above.join(format!("{PREFIX}{target}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    directory
}
