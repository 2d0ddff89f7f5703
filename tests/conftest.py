import pytest

# Their assertions are the point of them, so failures should show the values.
pytest.register_assert_rewrite("tests.fake_device", "tests.paired_schedulers")
