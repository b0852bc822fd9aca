{{- define "penstock.pod" -}}
automountServiceAccountToken: false
terminationGracePeriodSeconds: {{ add .Values.grace 20 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65534
  seccompProfile: {type: RuntimeDefault}
volumes:
  - {name: tmp, emptyDir: {}}
{{- end }}
{{- define "penstock.container" -}}
image: {{ .Values.image | quote }}
envFrom:
  - secretRef: {name: {{ .Values.secret }}}
env:
  - {name: PENSTOCK_GRACE, value: {{ .Values.grace | quote }}}
  - {name: PENSTOCK_METRICS_HOST, value: "0.0.0.0"}
  - {name: PENSTOCK_METRICS_PORT, value: "9100"}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
{{- end }}
