"""Write ``data/demo`` anew: ``python -m companion.corpora._demo_content``."""

from companion.corpora.demo import demo_dir, write_committed

if __name__ == "__main__":
    for path in write_committed(demo_dir()).values():
        print(path)
