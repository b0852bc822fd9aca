"""The conformance suite of stores: what `store.contract` promises, as tests for pytest.

A store is tested by a class that inherits from `StoreSuite` and says how to make a store on an empty database::

    class TestMyStore(StoreSuite):
        slow = Statement("select sleep(600)")

        def make_database(self) -> StoreMaker:
            url = new_empty_database()
            return lambda **settings: MyStore(Config(database=url, **settings))
"""
