"""H2 driver: one JVM in a process: threads, exit, signals, forks and kills."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.dialects.h2.driver.fresh_databases import run_python, start_python

pytestmark = [pytest.mark.engines("h2"), pytest.mark.chaos]


@pytest.fixture(autouse=True)
def _h2_only(engine_name: str) -> None:
    """Let ``--engines`` leave these tests out with those that need H2."""


def test_exit_after_worker_threads() -> None:
    """The process ends by itself, although threads used connections opened elsewhere."""
    code = """
    engine = create_engine("h2+jaydebeapi:///mem:x", pool_size=1, max_overflow=9)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (id INT)")
    shared = engine.raw_connection()
    def work():
        count(engine)
        cursor = shared.cursor()   # opened in the main thread, used in this one
        cursor.execute("SELECT 1")
        cursor.fetchall()
    for _ in range(5):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    print("done")
    """
    assert (0, ["done"]) == run_python(code)


@pytest.mark.full
def test_exit_after_start_in_a_thread() -> None:
    """The process ends although a worker thread started the JVM, and an endless one is left."""
    code = """
    engine = create_engine("h2+jaydebeapi:///mem:x")
    def first():
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE t (id INT)")
    def endless():
        while True:
            count(engine)
    thread = threading.Thread(target=first)
    thread.start()
    thread.join()
    threading.Thread(target=endless, daemon=True).start()
    time.sleep(0.3)
    print("done")
    """
    assert (0, ["done"]) == run_python(code)


def test_exit_under_a_waiting_thread() -> None:
    """The process ends in time although a daemon thread waits in Java for a row's lock."""
    code = """
    engine = create_engine("h2+jaydebeapi:///mem:x?LOCK_TIMEOUT=100000")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (id INT)")
        connection.exec_driver_sql("INSERT INTO t VALUES (1)")
    holder = engine.connect()
    holder.exec_driver_sql("UPDATE t SET id = 2")
    def wait():
        with engine.begin() as connection:
            connection.exec_driver_sql("UPDATE t SET id = 3")
    threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.5)
    print("done")
    """
    assert (0, ["done"]) == run_python(code)


@pytest.mark.full
def test_exit_functions_of_the_program_still_work(tmp_path: Path) -> None:
    """What is registered for the exit after the engine was made may use H2, and waits for it."""
    code = """
    import atexit
    engine = create_engine(sys.argv[1])
    atexit.register(lambda: print(count(engine)))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (id INT)")
    """
    assert (0, ["0"]) == run_python(code, f"h2+jaydebeapi:///{tmp_path}/db")


@pytest.mark.full
def test_ended_threads_leave_the_jvm() -> None:
    """Hundreds of short threads do not stay behind as Java threads."""
    code = """
    engine = create_engine("h2+jaydebeapi:///mem:x")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (id INT)")
    from sqlalchemy_h2 import jvm
    before = jvm.java().Thread.activeCount()
    for _ in range(40):
        threads = [threading.Thread(target=count, args=(engine,)) for _ in range(5)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    print(jvm.java().Thread.activeCount() - before < 20)
    """
    assert (0, ["True"]) == run_python(code)


def test_fork_is_refused() -> None:
    """A child forked after the JVM started gets InterfaceError and ends; the parent goes on."""
    code = """
    engine = create_engine("h2+jaydebeapi:///mem:x")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (id INT)")
    held = engine.connect()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        for operation in (lambda: held.exec_driver_sql("SELECT 1"), lambda: count(engine),
                    lambda: create_engine("h2+jaydebeapi:///mem:y").connect()):
            try:
                operation()
            except exc.InterfaceError as error:
                print("refused", "spawn" in str(error))
        engine.dispose()
        sys.stdout.flush()
        os._exit(7)
    print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    print("parent", count(engine))
    """
    lines = ["refused True"] * 3
    assert (0, [*lines, "child 7", "parent 0"]) == run_python(code)


@pytest.mark.full
def test_fork_before_the_first_connection() -> None:
    """A child forked before the JVM started has one of its own, as has its parent."""
    code = """
    engine = create_engine("h2+jaydebeapi:///mem:x")
    pid = os.fork()
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (id INT)")
    print(count(engine), flush=True)
    if pid:
        print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    assert (0, ["0", "0", "child 0"]) == run_python(code)


def test_spawn_works(tmp_path: Path) -> None:
    """A spawned child has a JVM of its own and shares the database through AUTO_SERVER."""
    script = tmp_path / "child.py"
    script.write_text(
        "import sqlalchemy as sa\n"
        "def insert(url):\n"
        "    engine = sa.create_engine(url)\n"
        "    with engine.begin() as connection:\n"
        "        connection.exec_driver_sql('INSERT INTO t VALUES (1)')\n"
        "    engine.dispose()\n"
    )
    code = """
    import multiprocessing
    sys.path.insert(0, sys.argv[2])
    import child
    engine = create_engine(sys.argv[1])
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (id INT)")
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=child.insert, args=sys.argv[1:2])
    process.start()
    process.join()
    print(process.exitcode, count(engine))
    """
    url = f"h2+jaydebeapi:///{tmp_path}/db?AUTO_SERVER=TRUE"
    assert (0, ["0 1"]) == run_python(code, url, str(tmp_path))


def test_committed_rows_survive_kill(tmp_path: Path) -> None:
    """Kill -9 in the middle of commits loses none that was reported (WRITE_DELAY is 0)."""
    url = f"h2+jaydebeapi:///{tmp_path}/db"
    code = """
    engine = create_engine(sys.argv[1])
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (id INT)")
    number = 0
    while True:
        with engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO t VALUES (?)", (number,))
        number += 1
        print(number, flush=True)
    """
    process = start_python(code, url)
    assert process.stdout is not None
    reported = [int(process.stdout.readline()) for _ in range(300)]
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate(timeout=60)
    last = max([*reported, *(int(line) for line in rest.splitlines(keepends=True)[:-1])])
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        kept = connection.exec_driver_sql("SELECT count(*) FROM t").scalar_one()
    engine.dispose()
    assert last <= kept


@pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "own handler")],
)
def test_signals_stay_with_python(number: signal.Signals, expected: str) -> None:
    """Ctrl-C raises KeyboardInterrupt and SIGTERM reaches the program's own handler."""
    code = """
    def stop(*_):
        print("own handler")
        sys.exit(0)
    signal.signal(signal.SIGTERM, stop)
    engine = create_engine("h2+jaydebeapi:///mem:x")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (id INT)")
    count(engine)
    # Not while the driver works: an interrupt inside of a destructor is lost, in any program.
    try:
        print("ready", flush=True)
        time.sleep(50)
    except KeyboardInterrupt:
        print("KeyboardInterrupt")
    """
    process = start_python(code)
    assert process.stdout is not None
    assert "ready\n" == process.stdout.readline()
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert 0 == process.returncode, errors
    assert f"{expected}\n" == output, errors


@pytest.mark.full
def test_relative_paths_follow_the_working_directory(tmp_path: Path) -> None:
    """A relative path means the folder of the moment, not the one in which Java started."""
    code = """
    create_engine("h2+jaydebeapi:///mem:x").connect().close()
    os.chdir(sys.argv[1])
    engine = create_engine("h2+jaydebeapi:///./here")
    engine.connect().close()
    engine.dispose()
    print(os.listdir())
    """
    assert (0, ["['here.mv.db']"]) == run_python(code, str(tmp_path))


@pytest.mark.full
def test_running_jvm_is_taken() -> None:
    """A JVM that other code has started without H2 learns the jar."""
    code = """
    import jpype
    jpype.startJVM()
    engine = create_engine("h2+jaydebeapi:///mem:x")
    with engine.connect() as connection:
        print(connection.exec_driver_sql("SELECT 1").scalar())
    """
    assert (0, ["1"]) == run_python(code)


@pytest.mark.full
def test_jvm_arguments() -> None:
    """The defaults are -Xrs, 256 MB and loopback; arguments of the URL come after them."""
    code = """
    import jpype
    engine = create_engine("h2+jaydebeapi:///mem:x?jvm_args=-Xmx64m+-Da=b")
    engine.connect().close()
    bean = jpype.JClass("java.lang.management.ManagementFactory").getRuntimeMXBean()
    flags = [str(flag) for flag in bean.getInputArguments()]
    print(flags[:3], flags[-2:])
    print(jpype.JClass("java.lang.Runtime").getRuntime().maxMemory() < 100_000_000)
    """
    first = ["-Xrs", "-Xmx256m", "-Dh2.bindAddress=127.0.0.1"]
    assert (0, [f"{first} {['-Xmx64m', '-Da=b']}", "True"]) == run_python(code)


@pytest.mark.full
def test_a_file_whose_lock_was_just_written_is_waited_for(tmp_path: Path) -> None:
    """A server was killed, and others that boot keep its lock file fresh: H2 refuses for 4 s.

    An engine on the shared file tries again until H2 takes the lock for stale.
    """
    url, lock = f"h2+jaydebeapi:///{tmp_path}/db?AUTO_SERVER=TRUE", tmp_path / "db.lock.db"
    killed = start_python(
        """
        engine = create_engine(sys.argv[1])
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE t (id INT)")
        print("open", flush=True)
        threading.Event().wait()
        """,
        url,
    )
    assert killed.stdout is not None
    assert "open\n" == killed.stdout.readline()
    killed.kill()
    killed.communicate()
    assert lock.exists()
    code = """
    from sqlalchemy_h2 import dbapi
    open_once, refusals, over = dbapi.Connection._open, [], threading.Event()
    def noting(*arguments):
        try:
            return open_once(*arguments)
        except dbapi.Error as error:
            refusals.append("recently modified" in str(error))
            over.set()
            raise
    def keep_fresh():
        while not over.wait(0.2):
            os.utime(sys.argv[2])
    dbapi.Connection._open = noting
    threading.Thread(target=keep_fresh, daemon=True).start()
    print(count(create_engine(sys.argv[1])), refusals[0])
    """
    assert (0, ["0 True"]) == run_python(code, url, str(lock))
