# The server and the command line as one static binary and nothing else: no shell, no libc, no package to patch.
#
#   docker build --tag bowstring .
#   docker run --rm bowstring demo
#   docker run --rm --publish 8815:8815 --volume "$PWD/photos:/data:ro" bowstring serve photos=/data --listen 0.0.0.0:8815 --insecure
FROM rust:1.89-alpine3.22 AS build
RUN apk add --no-cache ca-certificates cmake g++ linux-headers make musl-dev nasm perl python3
WORKDIR /bowstring
COPY Cargo.toml Cargo.lock README.md ./
COPY benches benches
COPY examples examples
COPY python python
COPY scripts/notices.py scripts/sbom.py scripts/
COPY src src
# Alpine's Rust links musl, statically unless told otherwise.
RUN cargo build --profile image --locked --package bowstring --bin bowstring --features turbo \
 && mkdir -p /root-of-image/tmp && chmod 1777 /root-of-image/tmp \
 && python3 scripts/notices.py --output /root-of-image/THIRD-PARTY-NOTICES.txt

FROM scratch
COPY --from=build /root-of-image/ /
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /bowstring/target/image/bowstring /bowstring
COPY LICENSE /LICENSE
# Nobody's number; a name would need a file of users.
USER 65532:65532
EXPOSE 8815 9090
ENTRYPOINT ["/bowstring"]
CMD ["--help"]
