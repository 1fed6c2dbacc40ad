# syntax=docker/dockerfile:1
# The agent's image: a Python with glibc (which the GPU driver's library needs), the pinned packages, the source.
# It needs no compiler and no package index at run time, and every package is installed by its hash.
#   hack/image.sh REGISTRY/nodeagent:0.2.0     builds it with the installed builder
#   hack/image.sh --lab                        builds the target `lab`: the same with the laboratory, for overlays/kind
# hack/base-image.txt has the digest of the base for releases; hack/image.sh passes it.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
COPY hack/requirements-run.txt /tmp/
# --only-binary: a missing wheel for this platform is an error, and no build tool is downloaded.
RUN python -m venv --without-pip /opt/nodeagent \
 && pip --python /opt/nodeagent/bin/python install --no-cache-dir --no-compile --no-deps --require-hashes \
        --only-binary :all: --requirement /tmp/requirements-run.txt
COPY nodeagent /tmp/nodeagent
COPY LICENSE /opt/nodeagent/LICENSE
COPY hack/third-party-notices.txt /opt/nodeagent/THIRD_PARTY_NOTICES
# Byte-compiled, because the container's file system is read-only and an import without .pyc takes twice the time.
# Unchecked hashes instead of timestamps, so that the same source gives the same image. Type stubs, the packages' own
# tests, gRPC's certificates (its connections here are UNIX sockets), and what rich needs for source code and Markdown
# alone are not needed at run time.
RUN cp -r /tmp/nodeagent "$(/opt/nodeagent/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
 && printf '#!/opt/nodeagent/bin/python\nimport sys\n\nfrom nodeagent.cli import main\n\nsys.exit(main())\n' \
        > /opt/nodeagent/bin/nodeagent \
 && chmod 0755 /opt/nodeagent/bin/nodeagent \
 && find /opt/nodeagent/lib '(' -name '*.pyi' -o -name roots.pem ')' -delete \
 && find /opt/nodeagent/lib -depth -type d -path '*/site-packages/*' '(' -name 'pygments*' -o -name 'markdown_it*' -o -name 'mdurl*' ')' \
        -exec rm -r '{}' + \
 && find /opt/nodeagent/lib -depth -type d '(' -name __pycache__ -o -name tests ')' -exec rm -r '{}' + \
 && /opt/nodeagent/bin/python -m compileall -q -f --invalidation-mode unchecked-hash /opt/nodeagent/lib

FROM build AS build-lab
COPY hack/add_package.py /tmp/
COPY hack/lab /tmp/lab
RUN /opt/nodeagent/bin/python /tmp/add_package.py /tmp/lab \
 && /opt/nodeagent/bin/python -m compileall -q -f --invalidation-mode unchecked-hash /opt/nodeagent/lib

FROM ${BASE} AS runtime
ARG BASE
ARG BASE_DIGEST=unknown
ARG VERSION=0.2.0
ARG REVISION=unknown
ARG CREATED=unknown
# The https address of the repository.
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="nodeagent" \
      org.opencontainers.image.description="GPU memory slices and SR-IOV VFs for the kubelet, with health in both directions" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.authors="The nodeagent maintainers" \
      org.opencontainers.image.vendor="The nodeagent maintainers" \
      org.opencontainers.image.url="${SOURCE}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.documentation="${SOURCE}" \
      org.opencontainers.image.base.name="${BASE}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}"
# Nothing is installed at run time, so the base image's installer is not needed. The base has no byte code of the standard
# library, and each start would compile it again, so it is compiled here, without the parts that only developers use.
RUN pip uninstall --yes --quiet --root-user-action=ignore pip \
 && python -m compileall -q -f --invalidation-mode unchecked-hash \
        -x '/(site-packages|dist-packages|test|tests|idlelib|lib2to3|tkinter|turtledemo|ensurepip|pydoc_data)/' \
        "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
# Log lines are not buffered. gRPC's fork handlers are off, because the process never forks.
ENV PATH=/opt/nodeagent/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    GRPC_ENABLE_FORK_SUPPORT=0
# The user nobody by default. The DaemonSet runs the agents as root without capabilities, because root owns the
# kubelet's folders and sysfs; the controller runs as nobody.
USER 65532:65532
ENTRYPOINT ["nodeagent"]
CMD ["--help"]

FROM runtime AS lab
LABEL org.opencontainers.image.title="nodeagent-lab" \
      org.opencontainers.image.description="nodeagent with simulated machines, for trying it in a kind cluster"
COPY --from=build-lab /opt/nodeagent /opt/nodeagent

# The last stage is what a build without a target makes: the product, without a stand-in.
FROM runtime
COPY --from=build /opt/nodeagent /opt/nodeagent
