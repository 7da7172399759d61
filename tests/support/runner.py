"""Runs the unittest cases of a file: one line a case, and `N passed, N failed` at the end."""
import sys
import time
import traceback
import unittest

from deployment import end_on_signals


class Lines(unittest.TestResult):
    """Says of each case, when it ends, how it went and how long it took."""

    def __init__(self):
        super().__init__()
        self.passed = 0

    def startTest(self, test):
        super().startTest(test)
        self._start = time.monotonic()

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1
        self._line("ok    ", test)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self._failed(test, error)

    def addError(self, test, error):
        super().addError(test, error)
        self._failed(test, error)

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error:
            self._failed(subtest, error)

    def _failed(self, test, error):
        self._line("FAILED", test)
        # The frames of unittest itself tell nothing.
        frames = [frame for frame in traceback.extract_tb(error[2]) if "unittest" not in frame.filename]
        told = traceback.format_list(frames) + traceback.format_exception_only(error[0], error[1])
        print("".join(told)[:4000], flush=True)

    def _line(self, word, test):
        name = test.id().removeprefix("__main__.")
        print(f"{word} {name} ({time.monotonic() - getattr(self, '_start', time.monotonic()):.1f} s)", flush=True)

    @property
    def failed(self):
        return len(self.failures) + len(self.errors)


def main():
    """Runs every case of the calling file whose name holds one of the words of the command line, or all."""
    end_on_signals()
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromModule(sys.modules["__main__"])
    words = sys.argv[1:]
    if words:
        wanted = [test for group in suite for test in group if any(word in test.id() for word in words)]
        suite = loader.suiteClass(wanted)
    result = Lines()
    suite.run(result)
    print(f"{result.passed} passed, {result.failed} failed", flush=True)
    sys.exit(1 if result.failed or not result.passed else 0)
