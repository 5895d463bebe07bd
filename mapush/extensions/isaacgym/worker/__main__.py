"""Start a worker: ``python __main__.py ENGINE.py SOCKET_FD MEMORY_FD``. Any Python can read this
file.

The packages around it need a newer Python and torch, so they are not imported: empty modules stand
in for them.
"""

import sys


def main(engine_file, socket_fd, memory_fd):  # noqa: D103
    import importlib.util
    import os
    import signal
    import threading
    import time
    import types

    # The host decides when to end.
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    for fd in (socket_fd, memory_fd):
        os.set_inheritable(fd, False)
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    worker = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != worker]
    extension = "mapush.extensions.isaacgym"
    for name in ("mapush", "mapush.extensions", extension):
        module = types.ModuleType(name)
        module.__path__ = [os.path.dirname(worker)] if name == extension else []
        sys.modules[name] = module

    from mapush.extensions.isaacgym.worker.protocol import Channel
    from mapush.extensions.isaacgym.worker.serve import serve

    def make_engine(scene, sizes, views):
        # The host's first message is read before the import, which may take a minute.
        spec = importlib.util.spec_from_file_location("mapush_engine", engine_file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.make_engine(scene, sizes, views)

    serve(make_engine, Channel(socket_fd), memory_fd)
    sys.stderr.flush()
    os._exit(0)  # Isaac Gym crashes in the interpreter's own shutdown


if __name__ == "__main__":
    if sys.version_info < (3, 8):
        sys.stderr.write(
            "Python %d.%d is too old for a worker, which takes 3.8 or newer\n"
            % sys.version_info[:2]
        )
        sys.exit(3)
    main(sys.argv[1], *[int(fd) for fd in sys.argv[2:4]])
