# A collector of OpenTelemetry: reads what arrives with OpenTelemetry's own messages.
#
# argv[1]: how the first requests are answered, by commas: a status, a status and what Retry-After
# says (429:1), or `hang`. All others are taken. Says its port, then one line for each request.
import json, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace

answers = [one for one in sys.argv[1].split(",") if one]
lock = threading.Lock()


def value(of):
    which = of.WhichOneof("value")
    if which == "array_value":
        return [value(one) for one in of.array_value.values]
    return getattr(of, which)


def attributes(of):
    names = [pair.key for pair in of]
    assert len(set(names)) == len(names), f"twice: {names}"
    return {pair.key: value(pair.value) for pair in of}


def spans(request):
    for resource in request.resource_spans:
        about = attributes(resource.resource.attributes)
        for scope in resource.scope_spans:
            assert scope.scope.name == "overmind"
            for span in scope.spans:
                assert len(span.trace_id) == 16 and len(span.span_id) == 8
                assert span.start_time_unix_nano <= span.end_time_unix_nano
                yield {
                    "trace": span.trace_id.hex(),
                    "span": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "links": [[link.trace_id.hex(), link.span_id.hex()] for link in span.links],
                    "name": span.name,
                    "kind": span.kind,
                    "attrs": attributes(span.attributes),
                    "status": [span.status.code, span.status.message],
                    "resource": about,
                    "ms": (span.end_time_unix_nano - span.start_time_unix_nano) // 1000000,
                }


def points(request):
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                assert metric.histogram.aggregation_temporality == 2
                for point in metric.histogram.data_points:
                    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
                    assert sum(point.bucket_counts) == point.count
                    yield {
                        "name": metric.name,
                        "unit": metric.unit,
                        "attrs": attributes(point.attributes),
                        "count": point.count,
                        "sum": point.sum,
                        "bounds": list(point.explicit_bounds),
                    }


class Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        with lock:
            answer = answers.pop(0) if answers else "200"
        told = {"path": self.path, "answer": answer, "at": time.monotonic()}
        told["headers"] = {name.lower(): text for name, text in self.headers.items()}
        try:
            assert self.headers["content-type"] == "application/x-protobuf"
            if self.path == "/v1/traces":
                told["spans"] = list(spans(trace.ExportTraceServiceRequest.FromString(body)))
                reply = trace.ExportTraceServiceResponse()
            else:
                assert self.path == "/v1/metrics", self.path
                told["points"] = list(points(metrics.ExportMetricsServiceRequest.FromString(body)))
                reply = metrics.ExportMetricsServiceResponse()
        except Exception as err:
            told = {"broken": repr(err)}
        with lock:
            print(json.dumps(told), flush=True)
        if answer == "hang":
            threading.Event().wait()
        status, _, after = answer.partition(":")
        reply = reply.SerializeToString() if status == "200" else b""
        self.send_response(int(status))
        if after:
            self.send_header("retry-after", after)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)


server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
server.daemon_threads = True
print(server.server_address[1], flush=True)
server.serve_forever()
